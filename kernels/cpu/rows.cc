#include "kernels/cpu/rows.h"

#include <cstring>

#include "kernels/cpu/vector/instructions.h"
#include "kernels/cpu/vector/simd.h"

namespace aludel::cpu {
namespace {

ALUDEL_SIMD void RoundBf16(const float* src, int64_t count, uint16_t* dst) {
  for (int64_t i = 0; i < count; ++i) dst[i] = ToBf16(src[i]).bits;
}

// Whatever instructions a device was opened with: the result is the same, but for denormals, which the
// instruction flushes to zero.
auto BestRounding() {
  const auto best = (*ChooseKernels(""))->round_bf16;
  return best != nullptr ? best : &RoundBf16;
}

}  // namespace

ALUDEL_SIMD void LoadBf16(const Bf16* src, int64_t count, float* dst) {
  for (int64_t i = 0; i < count; ++i) dst[i] = ToFloat(src[i]);
}

void StoreBf16(const float* src, int64_t count, Bf16* dst) {
  static const auto kRound = BestRounding();
  kRound(src, count, reinterpret_cast<uint16_t*>(dst));
}

ALUDEL_SIMD void WidenFp8(const Fp8* src, int64_t count, Bf16* dst) {
  for (int64_t i = 0; i < count; ++i) {
    dst[i].bits = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, FromFp8(src[i])) >> 16);
  }
}

const float* LoadRow(const TensorView& view, int64_t row, float* scratch) {
  if (view.dtype == DType::kF32) return view.f32() + row * view.stride;
  LoadBf16(view.bf16() + row * view.stride, view.cols, scratch);
  return scratch;
}

void StoreRow(const float* src, const TensorView& view, int64_t row) {
  if (view.dtype == DType::kF32) {
    std::memcpy(view.f32() + row * view.stride, src, view.cols * sizeof(float));
  } else {
    StoreBf16(src, view.cols, view.bf16() + row * view.stride);
  }
}

}  // namespace aludel::cpu
