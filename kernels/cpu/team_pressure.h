#pragma once

#include <chrono>

namespace aludel::cpu {

// Tells whether a team's threads get cores at the same time, and for how long to do without them where they do
// not. A loop ends when its last claimed task has; where other processes hold the cores, a worker that claimed
// one may be kept off its core for a time slice of milliseconds, and a loop of 100 microseconds waits for it. Then one
// thread alone is faster. Loops are observed for a window of time; where too much of it was such waiting, the
// team is left out for a while, which doubles each time that a new look finds the same. Pure: times are the
// caller's. Not thread-safe.
class TeamPressure {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether the caller should run its loop by itself.
  bool Alone(Clock::time_point now) const { return now < alone_until_; }

  // A loop of the team took its caller `own` to run tasks and then `waited` for tasks of others; it ends `now`.
  void Observe(Clock::duration own, Clock::duration waited, Clock::time_point now) {
    // Waiting for a task of ordinary length is part of any loop.
    if (waited > kOrdinary && waited > own) lost_ += waited;
    seen_ += own + waited;
    if (seen_ < kWindow) return;
    if (lost_ > seen_ * kLostShare) {
      alone_until_ = now + pause_;
      pause_ = 2 * pause_ < kLongestPause ? 2 * pause_ : kLongestPause;
    } else {
      pause_ = kFirstPause;
    }
    lost_ = seen_ = {};
  }

  static constexpr std::chrono::microseconds kOrdinary{200};
  static constexpr std::chrono::milliseconds kWindow{20};
  static constexpr double kLostShare = 0.25;
  static constexpr std::chrono::milliseconds kFirstPause{80};
  static constexpr std::chrono::milliseconds kLongestPause{2560};

 private:
  Clock::duration lost_{}, seen_{};
  Clock::duration pause_ = kFirstPause;
  Clock::time_point alone_until_{};
};

}  // namespace aludel::cpu
