#pragma once

#include <algorithm>
#include <cstdint>

namespace aludel {

// How many tokens a step may compute so that it does not take too long for those who wait beside it: the most
// that is allowed on a machine that keeps up, fewer where steps take longer than kLongestStep (other processes
// hold the cores, or the model is large for them). Not thread-safe.
class StepPace {
 public:
  // `most` is max_num_batched_tokens. Never below a quarter of it: receivers of frames count on
  // that (ModelHost::HandoffBytesBound).
  explicit StepPace(int64_t most) : most_(most), least_((most + 3) / 4), budget_(most) {}

  int64_t budget() const { return budget_; }

  // A step of `tokens` tokens took `seconds`; `shared`: more than one sequence had part in it or waits.
  void Observe(int64_t tokens, double seconds, bool shared) {
    if (!shared) {
      budget_ = most_;
      return;
    }
    if (seconds > kLongestStep && tokens > 0) {
      const auto affordable = static_cast<int64_t>(static_cast<double>(tokens) * kLongestStep / seconds);
      budget_ = std::clamp(affordable, least_, budget_);
    } else if (seconds < kLongestStep / 2) {
      budget_ = std::min(most_, 2 * budget_);
    }
  }

  static constexpr double kLongestStep = 1.0;  // seconds

 private:
  const int64_t most_;
  const int64_t least_;
  int64_t budget_;
};

}  // namespace aludel
