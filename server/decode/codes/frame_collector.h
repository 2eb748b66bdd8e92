#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "server/store/prefix_store.h"

namespace aludel {

// How much all collectors of a server may hold. Must outlive them.
struct CollectorRoom {
  std::atomic<size_t> held{0};  // bytes
  size_t limit = 0;
};

// Copies of one handoff's frames as they come, in any order, for the store once the handoff is complete: by then the engine
// has checked every one of them. Where there is no room for all of them it lets go of those that it has, and the handoff
// is not kept. Thread-safe.
class FrameCollector {
 public:
  // `begin` is where the prompt begins in `store`, before the first frame came: of what is cleared since nothing is kept.
  FrameCollector(PrefixStore* store, CollectorRoom* room, std::shared_ptr<const CodecSpec> codec,
                 const StorePosition& begin)
      : store_(store), room_(room), codec_(std::move(codec)), begin_(begin) {}
  ~FrameCollector() { Close(); }
  FrameCollector(const FrameCollector&) = delete;
  FrameCollector& operator=(const FrameCollector&) = delete;

  // A frame that came for this attempt, which may be over.
  void Add(int attempt, const FrameHeader& header, absl::Span<const uint8_t> payload);
  // The handoff begins, or begins again with another server. Frames of other attempts are not taken from now on.
  void Restart(int attempt);
  // The handoff has failed, or is not wanted any more: nothing is held from now on.
  void Close();
  // All frames of the prompt have come and were right; closes. Takes long: hashes tokens.
  void Keep(absl::Span<const int32_t> prompt);

 private:
  static constexpr int kNone = 0;  // attempts count from 1
  struct Frame {
    uint32_t sequence = 0;
    FrameCoverage coverage;
    std::vector<uint8_t> payload;
  };
  // Then takes frames of this attempt alone.
  std::vector<Frame> Take(int next_attempt);

  PrefixStore* const store_;
  CollectorRoom* const room_;
  const std::shared_ptr<const CodecSpec> codec_;
  const StorePosition begin_;
  absl::Mutex mutex_;
  std::vector<Frame> frames_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of them, in room_->held
  int attempt_ ABSL_GUARDED_BY(mutex_) = kNone;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
