#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector/simd.h"

namespace aludel {
namespace {

// An exponential in multiply-adds, about.
constexpr int64_t kExpWork = 20;

ALUDEL_SIMD void SiluRow(const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    // sigmoid through exp(-|x|), which cannot overflow.
    const float value = x[i];
    const float e = cpu::ExpNonPositive(value < 0.0f ? value : -value);
    const float sigmoid = (value < 0.0f ? e : 1.0f) / (1.0f + e);
    out[i] = value * sigmoid;
  }
}

ALUDEL_SIMD void MulRow(const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] *= x[i];
}

}  // namespace

void CpuOps::SiluMul(const TensorView& gate_up, const TensorView& out, Stream) {
  ALUDEL_CHECK(gate_up.rows == out.rows && gate_up.cols == 2 * out.cols);
  ForRows(out.rows, kExpWork * out.cols, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(gate_up.cols);
    std::vector<float> result(out.cols);
    for (int64_t t = begin; t < end; ++t) {
      const float* row = cpu::LoadRow(gate_up, t, scratch.data());
      SiluRow(row, out.cols, result.data());
      MulRow(row + out.cols, out.cols, result.data());
      cpu::StoreRow(result.data(), out, t);
    }
  });
}

void CpuOps::Silu(const TensorView& x, const TensorView& out, Stream) {
  ALUDEL_CHECK(x.rows == out.rows && x.cols == out.cols);
  ForRows(out.rows, kExpWork * out.cols, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(x.cols);
    std::vector<float> result(out.cols);
    for (int64_t t = begin; t < end; ++t) {
      SiluRow(cpu::LoadRow(x, t, scratch.data()), out.cols, result.data());
      cpu::StoreRow(result.data(), out, t);
    }
  });
}

void CpuOps::GatherRows(const TensorView& x, absl::Span<const int64_t> rows, const TensorView& out, Stream) {
  ALUDEL_CHECK(out.rows == static_cast<int64_t>(rows.size()) && out.cols == x.cols);
  std::vector<float> scratch(x.cols);
  for (size_t i = 0; i < rows.size(); ++i) {
    ALUDEL_CHECK(rows[i] >= 0 && rows[i] < x.rows);
    cpu::StoreRow(cpu::LoadRow(x, rows[i], scratch.data()), out, static_cast<int64_t>(i));
  }
}

void CpuOps::Convert(const TensorView& src, const TensorView& dst, Stream) {
  ALUDEL_CHECK(src.rows == dst.rows && src.cols == dst.cols);
  ForRows(src.rows, src.cols, [&](int64_t begin, int64_t end) {
    if (src.dtype == dst.dtype) {
      const size_t bytes = src.cols * SizeOf(src.dtype);
      for (int64_t t = begin; t < end; ++t) std::memcpy(dst.Rows(t, 1).data, src.Rows(t, 1).data, bytes);
      return;
    }
    std::vector<float> scratch(src.dtype == DType::kF32 ? 0 : src.cols);
    for (int64_t t = begin; t < end; ++t) cpu::StoreRow(cpu::LoadRow(src, t, scratch.data()), dst, t);
  });
}

}  // namespace aludel
