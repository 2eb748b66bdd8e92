#pragma once

#include <algorithm>
#include <cmath>

namespace aludel {

// How many prefill servers one decode server keeps busy, averaged over about a minute, for an autoscaler that adds up what all
// decode servers say: prompt tokens a second that it has them prefill, over kBusy of what one computes. Prompts count whole,
// also what a prefix cache has of them. Times are seconds of one clock. Not thread-safe.
class PrefillDemand {
 public:
  static constexpr double kBusy = 0.7;
  static constexpr double kSeconds = 60;

  // `asked_tokens`: since the start. `tokens_per_second`: of one server; 0: not known, and what was said before holds.
  double At(double asked_tokens, double tokens_per_second, double now) {
    if (begun_ && now > at_) {
      const double fresh = 1 - std::exp(-(now - at_) / kSeconds);
      rate_ += fresh * ((asked_tokens - asked_) / (now - at_) - rate_);
    }
    if (!begun_ || now > at_) {
      asked_ = asked_tokens;
      at_ = now;
    }
    begun_ = true;
    if (tokens_per_second > 0) pace_ = tokens_per_second;
    return pace_ > 0 ? rate_ / (kBusy * pace_) : 0;
  }

 private:
  bool begun_ = false;
  double asked_ = 0;
  double at_ = 0;
  double rate_ = 0;
  double pace_ = 0;
};

}  // namespace aludel
