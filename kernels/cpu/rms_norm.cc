#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector/simd.h"

namespace aludel {
namespace {

ALUDEL_SIMD void RmsNormRow(const float* x, const float* weight, float eps, int64_t count, float* out) {
  // Sixteen partial sums, so that the loop has no serial chain and the order of addition does not depend on
  // the vector width that was chosen at start-up.
  float partial[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int lane = 0; lane < 16; ++lane) partial[lane] += x[i + lane] * x[i + lane];
  }
  for (; i < count; ++i) partial[i % 16] += x[i] * x[i];
  float sum = 0.0f;
  for (float value : partial) sum += value;
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(count) + eps);
  for (i = 0; i < count; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace

void CpuOps::RmsNorm(const TensorView& x, const float* weight, float eps, const TensorView& out, Stream) {
  ALUDEL_CHECK(x.rows == out.rows && x.cols == out.cols);
  ForRows(x.rows, 4 * x.cols, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(x.cols);
    std::vector<float> result(x.cols);
    for (int64_t t = begin; t < end; ++t) {
      RmsNormRow(cpu::LoadRow(x, t, scratch.data()), weight, eps, x.cols, result.data());
      cpu::StoreRow(result.data(), out, t);
    }
  });
}

void CpuOps::HeadNorm(const TensorView& x, int head_dim, const float* weight, float eps, Stream) {
  ALUDEL_CHECK(x.cols % head_dim == 0);
  std::vector<float> scratch(x.cols);
  std::vector<float> result(x.cols);
  for (int64_t t = 0; t < x.rows; ++t) {
    const float* row = cpu::LoadRow(x, t, scratch.data());
    for (int64_t c = 0; c < x.cols; c += head_dim) {
      RmsNormRow(row + c, weight, eps, head_dim, result.data() + c);
    }
    cpu::StoreRow(result.data(), x, t);
  }
}

}  // namespace aludel
