#pragma once

#include <cmath>

#include "absl/time/time.h"

namespace aludel {

// Arrivals a second, of the last half minute or so. Not thread-safe.
class ArrivalRate {
 public:
  // Times follow each other.
  void Arrive(absl::Time now) {
    per_second_ = PerSecond(now) + 1 / kSeconds;
    at_ = now;
  }
  double PerSecond(absl::Time now) const {
    return per_second_ * std::exp(-absl::ToDoubleSeconds(now - at_) / kSeconds);
  }

 private:
  static constexpr double kSeconds = 20;

  double per_second_ = 0;
  absl::Time at_ = absl::UnixEpoch();
};

}  // namespace aludel
