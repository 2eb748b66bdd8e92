#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// The closed-form fits of calibration. All of them work on second moments alone (never on the token matrix),
// in double, on the threads of SetProductThreads, and give the same bytes for the same input and threads.

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

// Rows W [outputs, inputs] that minimize |X W^T - Y|^2 + lambda |W|^2 with lambda = ridge * mean diagonal,
// for xx = X^T X [inputs, inputs] and xy = X^T Y [inputs, outputs].
absl::StatusOr<HostMatrix> FitRidge(const Moments& xx, const Moments& xy, double ridge);

// The `rank` leading eigenvectors of a symmetric matrix as rows, largest eigenvalue first. Signs are fixed:
// the entry of largest magnitude is positive.
absl::StatusOr<HostMatrix> LeadingEigenvectors(const Moments& symmetric, int64_t rank);

// The latents of x that say most about y beyond what f says already. `xx` = E[(x f)^T (x f)] of centered
// features, x the first `main` columns, `xy` = E[(x f)^T y] of centered targets. With M the part of the ridge
// regression of y on (x, f) that multiplies x, and C = Cov(x | f) the covariance of the innovation (both with
// lambda = ridge * mean diagonal, of x and of f its own), the rows of `main` are E = sqrt(l_i) e_i with
// C M M^T C e_i = l_i C e_i, e_i^T C e_i = 1: reduced-rank regression (Izenman 1975) on innovations.
// z = E x + F f has variance l_i, the energy of y that the latent explains, so one quantizer step for all
// latents spends its error evenly (reverse water-filling).
struct InnovationBasis {
  HostMatrix main;             // E [rank, main]
  HostMatrix side;             // F [rank, columns of f]
  std::vector<double> energy;  // l_i, largest first
};
absl::StatusOr<InnovationBasis> FitInnovation(const Moments& xx, int64_t main, const Moments& xy,
                                              int64_t rank, double ridge);

// The directions of x that say most about y, as rows: with xx = sum of x^T x and told = sum of (x^T y)(x^T y)^T over kinds of y
// (AddOuterGram), those e_i for which told e_i = l_i C e_i, l_i largest, and e_i^T C e_i = 1, where C is xx with lambda = ridge *
// mean diagonal on its diagonal: reduced-rank regression (Izenman 1975).
absl::StatusOr<HostMatrix> PredictiveDirections(const Moments& xx, const Moments& told, int64_t rank,
                                                double ridge);

// gram += m m^T, the lower triangle alone.
void AddOuterGram(const Moments& m, Moments* gram);

// A root R of a positive definite matrix, R R^T = M: |y R|^2 = y M y^T.
struct MatrixRoot {
  HostMatrix root;     // R, lower triangular
  HostMatrix inverse;  // R^-T: columns y of rows seen through R come back as R^-T y
};
absl::StatusOr<MatrixRoot> CholeskyRoot(const Moments& symmetric);

// Moments seen through a projection: P xx P^T and P xy, for P [rank, inputs].
Moments ProjectBoth(const HostMatrix& projection, const Moments& xx);
Moments ProjectLeft(const HostMatrix& projection, const Moments& xy);

// Copies rows [row, row + rows), columns [col, col + cols).
Moments Block(const Moments& moments, int64_t row, int64_t rows, int64_t col, int64_t cols);

}  // namespace aludel
