#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace aludel {

// Whether a peer may be used, from what probes and calls show of it. A peer that is merely slow is not gone: it takes
// kMisses probes in a row without an answer to call it slow, something that came from it while a probe was waiting
// counts as an answer, and a slow peer is still used where no other is ready. A peer that refuses connections is down
// at once, and one of which nothing was heard for kSilence too. Times are MonotonicNow()'s. Not thread-safe.
//
//   unknown -> ready <-> slow -> down       every answer leads to ready, and Gone() to down
class PeerHealth {
 public:
  enum class State : uint8_t { kUnknown, kReady, kSlow, kDown };
  static constexpr int kMisses = 3;
  static constexpr absl::Duration kSilence = absl::Seconds(5);

  // A probe was answered.
  void Answered(absl::Time now) {
    Heard(now);
    misses_ = 0;
    refused_ = false;
    state_ = State::kReady;
  }
  // Something else came, e.g. a token of an answer.
  void Heard(absl::Time now) { heard_ = std::max(heard_, now); }
  // A probe that was sent at `sent` had no answer in time.
  void Missed(absl::Time sent, absl::Time now) {
    if (state_ == State::kUnknown || refused_) return Gone();
    if (heard_ >= sent) return Answered(heard_);  // also of one that was down for its silence
    ++misses_;
    if (now - heard_ >= kSilence) return Fall();
    if (misses_ >= kMisses && usable()) state_ = State::kSlow;
  }
  // A call took longer than it may: others are better until a probe is answered.
  void Late() {
    if (usable()) state_ = State::kSlow;
  }
  // Nothing listens there, or it must not be used.
  void Gone() {
    Fall();
    refused_ = true;
  }

  State state() const { return state_; }
  bool usable() const { return state_ == State::kReady || state_ == State::kSlow; }
  // Probes in a row without an answer.
  int misses() const { return misses_; }

 private:
  void Fall() {
    misses_ = 0;
    state_ = State::kDown;
  }

  State state_ = State::kUnknown;
  bool refused_ = false;  // down, and not for its silence alone
  int misses_ = 0;
  absl::Time heard_ = absl::InfinitePast();
};

}  // namespace aludel
