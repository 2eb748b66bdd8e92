#include "server/decode/plan/cost_fit.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <limits>

namespace aludel {
namespace {

// A sample's weight falls by this factor with each that follows: about the last twenty count.
constexpr double kMemory = 0.95;
constexpr double kLeastSpread = 0.1;  // standard deviation of x over its mean, for a line
constexpr double kTermCost = 0.01;    // of relative error, that a further term must save

}  // namespace

void CostFit::Add(double x, double y) {
  if (x <= 0) return;
  const Eigen::Vector3d row(1 / x, 1, x);
  products_ = kMemory * products_ + row * row.transpose();
  targets_ = kMemory * targets_ + row * (y / x);
  squares_ = kMemory * squares_ + y / x * (y / x);
  weight_ = kMemory * weight_ + 1;
}

std::optional<double> CostFit::At(double x) const {
  if (weight_ == 0) return std::nullopt;
  Eigen::Vector3d best = Eigen::Vector3d::Zero();
  double least = std::numeric_limits<double>::infinity();
  for (const std::vector<int>& terms : {std::vector<int>{1}, {0}, {0, 1}, {1, 2}, {0, 1, 2}}) {
    const Eigen::Vector3d fit = Solve(terms);
    if (!fit.allFinite() || fit.minCoeff() < 0) continue;
    const double score = Error(fit) + kTermCost * static_cast<double>(terms.size());
    if (score >= least) continue;
    least = score;
    best = fit;
  }
  return best.dot(Eigen::Vector3d(1, x, x * x));
}

double CostFit::SignedAt(double x) const {
  if (weight_ == 0) return 0;
  const double w = products_(0, 0);
  const double mean_x = products_(0, 1) / w;
  const double mean_y = targets_(0) / w;
  const double variance = products_(1, 1) / w - mean_x * mean_x;
  if (variance < kLeastSpread * kLeastSpread * mean_x * mean_x) return mean_y;
  return mean_y + (targets_(1) / w - mean_x * mean_y) / variance * (x - mean_x);
}

// Least squares in the given terms, the others 0.
Eigen::Vector3d CostFit::Solve(const std::vector<int>& terms) const {
  const Eigen::MatrixXd products = products_(terms, terms);
  const Eigen::VectorXd targets = targets_(terms);
  const Eigen::VectorXd solved = products.ldlt().solve(targets);
  Eigen::Vector3d fit = Eigen::Vector3d::Zero();
  for (size_t i = 0; i < terms.size(); ++i) fit(terms[i]) = solved(static_cast<Eigen::Index>(i));
  return fit;
}

// Root of the mean square of what `fit` misses, as a share of the targets'.
double CostFit::Error(const Eigen::Vector3d& fit) const {
  const double missed = squares_ - 2 * fit.dot(targets_) + fit.dot(products_ * fit);
  return std::sqrt(std::max(0.0, missed) / std::max(squares_, std::numeric_limits<double>::min()));
}

}  // namespace aludel
