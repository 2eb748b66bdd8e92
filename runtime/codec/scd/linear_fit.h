#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// The closed-form fits of calibration. All of them work on second moments alone (never on the token matrix),
// in double, on one thread, and give the same bytes for the same input.

// A row-major double matrix.
struct Moments {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<double> values;

  static Moments Zeros(int64_t rows, int64_t cols) {
    return {rows, cols, std::vector<double>(static_cast<size_t>(rows * cols))};
  }
  double& at(int64_t i, int64_t j) { return values[static_cast<size_t>(i * cols + j)]; }
  double at(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * cols + j)]; }
};

// Published Reuse for one kind of one layer. `gram` = X^T X of the joint matrix X = [A B], of which A is the
// first `producer_dim` columns. With X = U S V^T cut to rank r: latent Z = X V_r (= U_r S_r), decoders
// B = Z V_r,B^T, and an encoder Z ~ A E by ridge regression,
//   E = (A^T A + lambda I)^-1 A^T X V_r,   lambda = ridge * trace(A^T A) / producer_dim.
struct JointSvd {
  HostMatrix encoder;  // E^T [r, producer_dim]
  HostMatrix decoder;  // V_r,B [consumer_dim, r]
  double total_energy = 0;
  double tail_energy = 0;  // of the singular values cut off: the squared error of X on its own latent
};
absl::StatusOr<JointSvd> FitJointSvd(const Moments& gram, int64_t producer_dim, int64_t rank, double ridge);

// Rows W [outputs, inputs] that minimise |X W^T - Y|^2 + lambda |W|^2 with lambda = ridge * mean diagonal,
// for xx = X^T X [inputs, inputs] and xy = X^T Y [inputs, outputs].
absl::StatusOr<HostMatrix> FitRidge(const Moments& xx, const Moments& xy, double ridge);

// The `rank` leading eigenvectors of a symmetric matrix as rows, largest eigenvalue first. Signs are fixed:
// the entry of largest magnitude is positive.
absl::StatusOr<HostMatrix> LeadingEigenvectors(const Moments& symmetric, int64_t rank);

// Moments seen through a projection: P xx P^T and P xy, for P [rank, inputs].
Moments ProjectBoth(const HostMatrix& projection, const Moments& xx);
Moments ProjectLeft(const HostMatrix& projection, const Moments& xy);

// Copies rows [row, row + rows), columns [col, col + cols).
Moments Block(const Moments& moments, int64_t row, int64_t rows, int64_t col, int64_t cols);

}  // namespace aludel
