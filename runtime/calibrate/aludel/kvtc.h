#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// The transform coder that KVTC publishes for one model on both sides (NVIDIA, ICLR 2026, arXiv 2511.01815),
// as a baseline: principal components of [K V] (K before RoPE) of a group of layers, a width for every eight
// components chosen by dynamic programming, a uniform quantizer for each, DEFLATE. It is an aludel format
// without side information, whose decoder is the transpose of its encoder.

// Row `row` of the data, `columns` values.
using RowReader = std::function<void(int64_t row, float* out)>;

struct PrincipalBasis {
  std::vector<float> mean;  // [columns]
  HostMatrix axes;          // [rank, columns], orthonormal, largest variance first
};
// From the covariance, added up in double row by row: memory is columns^2, whatever the rows.
absl::StatusOr<PrincipalBasis> FitPrincipalBasis(const RowReader& read, int64_t rows, int64_t columns,
                                                 int64_t rank);

// Coordinates (x - mean) axes^T of `count` rows, `stride` apart. [count, rank]
std::vector<float> Coordinates(const PrincipalBasis& basis, const RowReader& read, int64_t count,
                               int64_t stride);

// Components that share a width, so that a block of width w takes w bytes of a token.
inline constexpr int64_t kWidthBlock = 8;
inline constexpr int kWidths[] = {0, 1, 2, 4, 8};

// What quantization may cost and does: per component its width, its step, and the squared error that the
// sample showed, summed over rows.
struct WidthPlan {
  std::vector<int> widths;   // [rank]
  std::vector<float> steps;  // [rank], 0 where the width is 0
  double error = 0;
};
// The widths with the least squared error over `coordinates` [rows, rank] among those of at most
// `bytes_per_token` bytes, by dynamic programming over blocks. Codes are (k + 1/2) step, k from -2^(w-1) to
// 2^(w-1) - 1; each component and width takes the best of a few steps.
WidthPlan ChooseWidths(absl::Span<const float> coordinates, int64_t rank, int64_t bytes_per_token);

// The best step of one component at `width` bits, and its squared error.
struct StepChoice {
  float step = 0;
  double error = 0;
};
StepChoice ChooseStep(absl::Span<const float> values, int width);

struct KvtcGroup {
  AludelEncoderGroup encoder;
  AludelDecoderGroup decoder;
};
// Components of width 0 are left out.
KvtcGroup MakeKvtcGroup(const PrincipalBasis& basis, const WidthPlan& plan);

}  // namespace aludel
