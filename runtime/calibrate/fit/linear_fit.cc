#include "runtime/calibrate/fit/linear_fit.h"

#include <lapacke.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// The only translation unit that includes Eigen: its headers cost seconds each.

// By columns, as LAPACK has them: of rows it makes a transposed copy, there and back, in every factorization.
using Matrix = Eigen::MatrixXd;
using RowMatrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const RowMatrix>;

ConstMap AsEigen(const Moments& moments) { return {moments.values.data(), moments.rows, moments.cols}; }

Matrix AsEigen(const HostMatrix& matrix) {
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
             matrix.values.data(), matrix.rows, matrix.cols)
      .cast<double>();
}

HostMatrix ToHost(const Matrix& matrix) {
  HostMatrix host = HostMatrix::Zeros(matrix.rows(), matrix.cols());
  Eigen::Map<Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(
      host.values.data(), matrix.rows(), matrix.cols()) = matrix.cast<float>();
  return host;
}

Moments ToMoments(const Matrix& matrix) {
  Moments moments = Moments::Zeros(matrix.rows(), matrix.cols());
  Eigen::Map<RowMatrix>(moments.values.data(), matrix.rows(), matrix.cols()) = matrix;
  return moments;
}

struct Eigenpairs {
  Matrix vectors;          // [n, rank], one per column, largest first
  Eigen::VectorXd values;  // [rank]
};

// Of a matrix whose lower triangle is given.
absl::StatusOr<Eigenpairs> Leading(Matrix symmetric, int64_t rank) {
  const int64_t n = symmetric.rows();
  if (rank < 1 || rank > n) {
    return absl::InvalidArgumentError(absl::StrFormat("rank is %d, want 1 to %d", rank, n));
  }
  if (!symmetric.allFinite()) {
    return absl::InternalError(absl::StrFormat("a %d x %d moment matrix is not finite", n, n));
  }
  // Only the leading pairs, smallest first.
  Eigen::MatrixXd vectors(n, rank);
  Eigen::VectorXd values(n);
  std::vector<lapack_int> support(2 * rank);
  lapack_int found = 0;
  const lapack_int info = LAPACKE_dsyevr(
      LAPACK_COL_MAJOR, 'V', 'I', 'L', static_cast<lapack_int>(n), symmetric.data(),
      static_cast<lapack_int>(n), 0, 0, static_cast<lapack_int>(n - rank + 1), static_cast<lapack_int>(n), 0,
      &found, values.data(), vectors.data(), static_cast<lapack_int>(n), support.data());
  if (info != 0 || found != rank) {
    return absl::InternalError(
        absl::StrFormat("eigenvalues of a %d x %d moment matrix did not converge (LAPACK %d)", n, n, info));
  }
  Eigenpairs pairs{vectors.rowwise().reverse(), values.head(rank).reverse()};
  for (int64_t j = 0; j < rank; ++j) {
    Eigen::Index largest = 0;
    pairs.vectors.col(j).cwiseAbs().maxCoeff(&largest);
    if (pairs.vectors(largest, j) < 0) pairs.vectors.col(j) *= -1.0;
  }
  return pairs;
}

// (xx + lambda I)^-1 xy, both in place.
absl::StatusOr<Matrix> SolveRidge(Matrix xx, Matrix xy, double ridge) {
  ALUDEL_CHECK(xx.rows() == xx.cols() && xx.rows() == xy.rows());
  xx.diagonal().array() += ridge * xx.trace() / static_cast<double>(xx.rows());
  const Eigen::LLT<Eigen::Ref<Matrix>> factor(xx);
  if (factor.info() == Eigen::Success) factor.solveInPlace(xy);
  if (factor.info() != Eigen::Success || !xy.allFinite()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "a %d x %d moment matrix is singular at ridge %g: use more calibration text or a larger ridge",
        xx.rows(), xx.cols(), ridge));
  }
  return xy;
}

}  // namespace

absl::StatusOr<JointSvd> FitJointSvd(const Moments& gram, int64_t producer_dim, int64_t rank, double ridge) {
  ALUDEL_CHECK(gram.rows == gram.cols && producer_dim > 0 && producer_dim < gram.rows);
  const Matrix g = AsEigen(gram);
  ALUDEL_ASSIGN_OR_RETURN(const Eigenpairs pairs, Leading(g, rank));
  // A^T Z = A^T X V_r: the first rows of the joint moments times V_r.
  const Matrix az = g.topRows(producer_dim) * pairs.vectors;
  ALUDEL_ASSIGN_OR_RETURN(const Matrix encoder,
                          SolveRidge(g.topLeftCorner(producer_dim, producer_dim), az, ridge));
  JointSvd fit;
  fit.encoder = ToHost(encoder.transpose());
  fit.decoder = ToHost(pairs.vectors.bottomRows(g.rows() - producer_dim));
  fit.total_energy = g.trace();
  fit.tail_energy = std::max(0.0, fit.total_energy - pairs.values.sum());
  return fit;
}

absl::StatusOr<HostMatrix> FitRidge(const Moments& xx, const Moments& xy, double ridge) {
  ALUDEL_ASSIGN_OR_RETURN(const Matrix solution, SolveRidge(AsEigen(xx), AsEigen(xy), ridge));
  return ToHost(solution.transpose());
}

absl::StatusOr<HostMatrix> LeadingEigenvectors(const Moments& symmetric, int64_t rank) {
  ALUDEL_ASSIGN_OR_RETURN(const Eigenpairs pairs, Leading(AsEigen(symmetric), rank));
  return ToHost(pairs.vectors.transpose());
}

absl::StatusOr<InnovationBasis> FitInnovation(const Moments& xx, int64_t main, const Moments& xy,
                                              int64_t rank, double ridge) {
  const ConstMap c = AsEigen(xx);
  const int64_t side = xx.cols - main;
  ALUDEL_CHECK(main > 0 && side >= 0 && xy.rows == xx.rows);
  // The regression on (x, f) by elimination of f: M = C^-1 R, where R is what f leaves of E[x^T y].
  Matrix innovation = c.topLeftCorner(main, main);
  Matrix rest = AsEigen(xy).topRows(main);
  Matrix predict(side, main);  // x from f
  if (side > 0) {
    ALUDEL_ASSIGN_OR_RETURN(
        predict, SolveRidge(c.bottomRightCorner(side, side), c.bottomLeftCorner(side, main), ridge));
    innovation.noalias() -= c.topRightCorner(main, side) * predict;
    rest.noalias() -= predict.transpose() * AsEigen(xy).bottomRows(side);
  }
  const double floor = ridge * c.topLeftCorner(main, main).trace() / static_cast<double>(main);
  innovation = (0.5 * (innovation + innovation.transpose())).eval();
  innovation.diagonal().array() += floor;
  const Eigen::LLT<Eigen::Ref<Matrix>> factor(innovation);
  if (factor.info() != Eigen::Success) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the innovation of %d features is singular at ridge %g: use more calibration text or "
                        "a larger ridge",
                        main, ridge));
  }
  // With C = L L^T, L^T M M^T L has the eigenvectors L^T e_i, and L^T M = L^-1 R.
  factor.matrixL().solveInPlace(rest);
  Matrix gram = Matrix::Zero(main, main);
  gram.selfadjointView<Eigen::Lower>().rankUpdate(rest);
  ALUDEL_ASSIGN_OR_RETURN(const Eigenpairs pairs, Leading(std::move(gram), rank));
  Matrix e = factor.matrixU().solve(pairs.vectors);  // L^-T u
  InnovationBasis basis;
  for (int64_t j = 0; j < rank; ++j) {
    const double energy = std::max(0.0, pairs.values(j));
    e.col(j) *= std::sqrt(energy);
    basis.energy.push_back(energy);
  }
  basis.main = ToHost(e.transpose());
  basis.side = ToHost(-(predict * e).transpose());
  return basis;
}

absl::StatusOr<HostMatrix> PredictiveDirections(const Moments& xx, const Moments& told, int64_t rank,
                                                double ridge) {
  ALUDEL_CHECK(xx.rows == xx.cols && told.rows == xx.rows && told.cols == xx.rows);
  Matrix c = AsEigen(xx);
  c.diagonal().array() += ridge * c.trace() / static_cast<double>(xx.rows);
  const Eigen::LLT<Eigen::Ref<Matrix>> factor(c);
  if (factor.info() != Eigen::Success) {
    return absl::FailedPreconditionError(
        absl::StrFormat("the %d features of side information are singular at ridge %g: use more calibration "
                        "text or a larger ridge",
                        xx.rows, ridge));
  }
  // With C = L L^T, L^-1 told L^-T has the eigenvectors L^T e_i.
  Matrix whitened = Matrix(AsEigen(told)).selfadjointView<Eigen::Lower>();
  factor.matrixL().solveInPlace(whitened);
  whitened.transposeInPlace();
  factor.matrixL().solveInPlace(whitened);
  ALUDEL_ASSIGN_OR_RETURN(const Eigenpairs pairs, Leading(std::move(whitened), rank));
  const Matrix e = factor.matrixU().solve(pairs.vectors);
  return ToHost(e.transpose());
}

void AddOuterGram(const Moments& m, Moments* gram) {
  ALUDEL_CHECK(gram->rows == m.rows && gram->cols == m.rows);
  Eigen::Map<RowMatrix> sum(gram->values.data(), gram->rows, gram->cols);
  sum.selfadjointView<Eigen::Lower>().rankUpdate(AsEigen(m));
}

absl::StatusOr<MatrixRoot> CholeskyRoot(const Moments& symmetric) {
  const int64_t n = symmetric.rows;
  const Eigen::LLT<Matrix> factor(AsEigen(symmetric));
  if (factor.info() != Eigen::Success) {
    return absl::FailedPreconditionError(absl::StrFormat("a %d x %d metric is not positive definite", n, n));
  }
  const Matrix inverse = factor.matrixL().transpose().solve(Matrix::Identity(n, n));
  if (!inverse.allFinite()) {
    return absl::FailedPreconditionError(absl::StrFormat("a %d x %d metric is singular", n, n));
  }
  return MatrixRoot{ToHost(factor.matrixL()), ToHost(inverse)};
}

Moments ProjectBoth(const HostMatrix& projection, const Moments& xx) {
  const Matrix p = AsEigen(projection);
  return ToMoments(p * AsEigen(xx) * p.transpose());
}

Moments ProjectLeft(const HostMatrix& projection, const Moments& xy) {
  return ToMoments(AsEigen(projection) * AsEigen(xy));
}

Moments Block(const Moments& moments, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  return ToMoments(AsEigen(moments).block(row, col, rows, cols));
}

}  // namespace aludel
