#include "runtime/calibrate/aludel/kvtc.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "Eigen/Dense"
#include "kernels/check.h"
#include "runtime/calibrate/fit/linear_fit.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Rows read together.
constexpr int64_t kChunk = 512;
// Where a uniform quantizer may end, in standard deviations.
constexpr double kRanges[] = {0.8, 1.2, 1.6, 2, 2.5, 3, 4, 5, 6.5};

Rows ReadRows(const RowReader& read, int64_t begin, int64_t count, int64_t stride,
              const std::vector<float>& mean) {
  const auto columns = static_cast<int64_t>(mean.size());
  Rows rows(count, columns);
  for (int64_t i = 0; i < count; ++i) read((begin + i) * stride, rows.row(i).data());
  return rows.rowwise() - Eigen::Map<const Eigen::RowVectorXf>(mean.data(), columns);
}

float Quantized(float value, float step, int width) {
  const float least = -std::ldexp(1.0f, width - 1);
  return (std::clamp(std::floor(value / step), least, -least - 1) + 0.5f) * step;
}

}  // namespace

absl::StatusOr<PrincipalBasis> FitPrincipalBasis(const RowReader& read, int64_t rows, int64_t columns,
                                                 int64_t rank) {
  ALUDEL_CHECK(rows > 0 && rank > 0 && rank <= columns);
  PrincipalBasis basis;
  std::vector<double> sum(columns);
  std::vector<float> row(columns);
  for (int64_t i = 0; i < rows; ++i) {
    read(i, row.data());
    for (int64_t j = 0; j < columns; ++j) sum[j] += row[j];
  }
  for (const double value : sum) basis.mean.push_back(static_cast<float>(value / static_cast<double>(rows)));
  Moments covariance = Moments::Zeros(columns, columns);
  Eigen::Map<Eigen::MatrixXd> total(covariance.values.data(), columns, columns);
  for (int64_t at = 0; at < rows; at += kChunk) {
    const Rows chunk = ReadRows(read, at, std::min(kChunk, rows - at), 1, basis.mean);
    // A chunk's sum in f32, all chunks' in double.
    const Rows product = chunk.transpose() * chunk;
    total += product.cast<double>();
  }
  total /= static_cast<double>(rows);
  ALUDEL_ASSIGN_OR_RETURN(basis.axes, LeadingEigenvectors(covariance, rank));
  return basis;
}

std::vector<float> Coordinates(const PrincipalBasis& basis, const RowReader& read, int64_t count,
                               int64_t stride) {
  const Eigen::Map<const Rows> axes(basis.axes.values.data(), basis.axes.rows, basis.axes.cols);
  std::vector<float> coordinates(count * basis.axes.rows);
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t some = std::min(kChunk, count - at);
    Eigen::Map<Rows>(coordinates.data() + at * basis.axes.rows, some, basis.axes.rows) =
        ReadRows(read, at, some, stride, basis.mean) * axes.transpose();
  }
  return coordinates;
}

StepChoice ChooseStep(absl::Span<const float> values, int width) {
  double energy = 0;
  for (const float value : values) energy += double{value} * value;
  if (width == 0 || energy == 0) return {0, energy};
  const double deviation = std::sqrt(energy / static_cast<double>(values.size()));
  StepChoice best{0, std::numeric_limits<double>::infinity()};
  for (const double range : kRanges) {
    const auto step = static_cast<float>(2 * range * deviation / std::ldexp(1.0, width));
    double error = 0;
    for (const float value : values) {
      const double difference = value - Quantized(value, step, width);
      error += difference * difference;
    }
    if (error < best.error) best = {step, error};
  }
  return best;
}

WidthPlan ChooseWidths(absl::Span<const float> coordinates, int64_t rank, int64_t bytes_per_token) {
  constexpr int kChoices = std::size(kWidths);
  const int64_t rows = static_cast<int64_t>(coordinates.size()) / rank;
  const int64_t blocks = (rank + kWidthBlock - 1) / kWidthBlock;
  std::vector<StepChoice> steps(rank * kChoices);
  std::vector<double> errors(blocks * kChoices);
  std::vector<float> column(rows);
  for (int64_t i = 0; i < rank; ++i) {
    for (int64_t t = 0; t < rows; ++t) column[t] = coordinates[t * rank + i];
    for (int w = 0; w < kChoices; ++w) {
      steps[i * kChoices + w] = ChooseStep(column, kWidths[w]);
      errors[i / kWidthBlock * kChoices + w] += steps[i * kChoices + w].error;
    }
  }
  // least[b][c]: error of blocks [0, b) in at most c bytes; chosen[b][c]: of block b within it.
  std::vector<std::vector<double>> least(blocks + 1, std::vector<double>(bytes_per_token + 1, 0.0));
  std::vector<std::vector<int>> chosen(blocks, std::vector<int>(bytes_per_token + 1, 0));
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t c = 0; c <= bytes_per_token; ++c) {
      least[b + 1][c] = std::numeric_limits<double>::infinity();
      for (int w = 0; w < kChoices && kWidths[w] <= c; ++w) {
        const double error = least[b][c - kWidths[w]] + errors[b * kChoices + w];
        if (error < least[b + 1][c]) {
          least[b + 1][c] = error;
          chosen[b][c] = w;
        }
      }
    }
  }
  WidthPlan plan;
  plan.widths.resize(rank);
  plan.steps.resize(rank);
  plan.error = least[blocks][bytes_per_token];
  int64_t left = bytes_per_token;
  for (int64_t b = blocks - 1; b >= 0; --b) {
    const int w = chosen[b][left];
    left -= kWidths[w];
    for (int64_t i = b * kWidthBlock; i < std::min(rank, (b + 1) * kWidthBlock); ++i) {
      const StepChoice& step = steps[i * kChoices + w];
      plan.widths[i] = step.step > 0 ? kWidths[w] : 0;
      plan.steps[i] = step.step;
    }
  }
  return plan;
}

KvtcGroup MakeKvtcGroup(const PrincipalBasis& basis, const WidthPlan& plan) {
  const int64_t columns = basis.axes.cols;
  const int64_t rank =
      static_cast<int64_t>(plan.widths.size()) - std::count(plan.widths.begin(), plan.widths.end(), 0);
  KvtcGroup group;
  AludelEncoderGroup& encoder = group.encoder;
  AludelDecoderGroup& decoder = group.decoder;
  encoder.matrix = HostMatrix::Zeros(rank, columns);
  encoder.grid.step = 1;
  decoder.linear = HostMatrix::Zeros(columns, rank);
  decoder.bias = basis.mean;
  int64_t at = 0;
  for (size_t i = 0; i < plan.widths.size(); ++i) {
    if (plan.widths[i] == 0) continue;
    const float step = plan.steps[i];
    const float* axis = basis.axes.row(static_cast<int64_t>(i));
    // round(z / step - 1/2) is the code k of (k + 1/2) step.
    double offset = -0.5;
    for (int64_t j = 0; j < columns; ++j) {
      encoder.matrix.row(at)[j] = axis[j] / step;
      offset -= double{basis.mean[j]} * axis[j] / step;
      decoder.linear.row(j)[at] = axis[j] * step;
      decoder.bias[j] += 0.5f * axis[j] * step;
    }
    encoder.offset.push_back(static_cast<float>(offset));
    encoder.grid.bits.push_back(plan.widths[i]);
    ++at;
  }
  decoder.grid = encoder.grid;
  return group;
}

}  // namespace aludel
