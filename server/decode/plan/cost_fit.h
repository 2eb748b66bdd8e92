#pragma once

#include <Eigen/Core>
#include <optional>
#include <vector>

namespace aludel {

// y = a + b x + c x^2 for x > 0: what work over x tokens takes, attention being its square. Fitted to the
// samples seen by their relative error, the latest counting most. Not thread-safe.
class CostFit {
 public:
  // Nothing is learned from x <= 0.
  void Add(double x, double y);

  // With a, b, c >= 0, and as few of them as explain the samples. Nothing before the first sample.
  std::optional<double> At(double x) const;

  // For what may be negative or fall, like a correction: the line of any a and b; 0 before the first sample,
  // their mean where all have about the same x.
  double SignedAt(double x) const;

 private:
  Eigen::Vector3d Solve(const std::vector<int>& terms) const;
  double Error(const Eigen::Vector3d& fit) const;

  // Weighted sums over samples of the rows (1, x, x^2) / x, with y / x for target.
  Eigen::Matrix3d products_ = Eigen::Matrix3d::Zero();
  Eigen::Vector3d targets_ = Eigen::Vector3d::Zero();
  double squares_ = 0;
  double weight_ = 0;
};

}  // namespace aludel
