#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

namespace aludel {

// How long a replica's prefill queue is: what it reported last, what this gateway has sent since, less the time that went
// by. A report is older than what was sent after it was made; that counts on top of it. Times and durations are seconds of
// one clock. Bounded by kMaxSent. Not thread-safe.
class ReplicaLoad {
 public:
  static constexpr size_t kMaxSent = 4096;

  // The replica had this much to do at `as_of`.
  void Report(double seconds, double as_of) {
    while (!sent_.empty() && sent_.front().at <= as_of) sent_.pop_front();
    backlog_ = std::max(0.0, seconds);
    at_ = as_of;
    for (const Sent& sent : sent_) Grow(sent.seconds, sent.at);
  }
  // This gateway gives it so much more.
  void Add(double seconds, double now) {
    if (sent_.size() == kMaxSent) sent_.pop_front();
    sent_.push_back({seconds, now});
    Grow(seconds, now);
  }
  // Until it has done all of that.
  double At(double now) const { return std::max(0.0, backlog_ - std::max(0.0, now - at_)); }

 private:
  struct Sent {
    double seconds;
    double at;
  };
  void Grow(double seconds, double now) {
    backlog_ = At(now) + std::max(0.0, seconds);
    at_ = std::max(at_, now);
  }

  double backlog_ = 0;
  double at_ = 0;
  std::deque<Sent> sent_;  // since the last report
};

}  // namespace aludel
