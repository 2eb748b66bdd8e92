#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

namespace aludel {

// y = a + b x, fitted to the samples seen, the latest counting most. Not thread-safe.
class LinearFit {
 public:
  // A sample's weight falls by this factor with each that follows: about the last ten count.
  static constexpr double kMemory = 0.9;

  void Add(double x, double y) {
    w_ = kMemory * w_ + 1;
    x_ = kMemory * x_ + x;
    y_ = kMemory * y_ + y;
    xx_ = kMemory * xx_ + x * x;
    xy_ = kMemory * xy_ + x * y;
  }

  // With a, b >= 0. Nothing before the first sample. Where all samples have about the same x, proportional to
  // it.
  std::optional<double> At(double x) const {
    if (w_ == 0) return std::nullopt;
    const double mean_x = x_ / w_;
    const double mean_y = y_ / w_;
    const double variance = xx_ / w_ - mean_x * mean_x;
    if (Narrow(mean_x, variance)) {
      return mean_x <= 0 ? mean_y : mean_y * x / mean_x;
    }
    const double slope = std::max(0.0, Slope(mean_x, mean_y, variance));
    const double offset = mean_y - slope * mean_x;
    // A line that would begin below zero is one through it.
    return offset >= 0 ? offset + slope * x : mean_y * x / std::max(mean_x, 1e-9);
  }

  // The same of what may be negative or fall, like a correction: any a and b; 0 before the first sample,
  // their mean where all have about the same x.
  double SignedAt(double x) const {
    if (w_ == 0) return 0;
    const double mean_x = x_ / w_;
    const double mean_y = y_ / w_;
    const double variance = xx_ / w_ - mean_x * mean_x;
    return Narrow(mean_x, variance) ? mean_y : mean_y + Slope(mean_x, mean_y, variance) * (x - mean_x);
  }

 private:
  static bool Narrow(double mean_x, double variance) {
    return variance < kLeastSpread * kLeastSpread * mean_x * mean_x;
  }
  double Slope(double mean_x, double mean_y, double variance) const {
    return (xy_ / w_ - mean_x * mean_y) / variance;
  }

  static constexpr double kLeastSpread = 0.1;  // standard deviation of x over its mean
  double w_ = 0;
  double x_ = 0;
  double y_ = 0;
  double xx_ = 0;
  double xy_ = 0;
};

}  // namespace aludel
