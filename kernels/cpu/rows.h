#pragma once

#include <cstdint>

#include "kernels/fp8_pages.h"
#include "kernels/tensor.h"

namespace aludel::cpu {

// Rows of either dtype as f32, the type every CPU kernel computes in.

void LoadBf16(const Bf16* src, int64_t count, float* dst);
void StoreBf16(const float* src, int64_t count, Bf16* dst);
// Exact: bf16 has all numbers of FP8.
void WidenFp8(const Fp8* src, int64_t count, Bf16* dst);

// Row `row` of `view` as floats: the row itself where it is f32, else a converted copy in `scratch` [cols].
const float* LoadRow(const TensorView& view, int64_t row, float* scratch);
void StoreRow(const float* src, const TensorView& view, int64_t row);

// exp(x) for x <= 0 to about 2 ulp, in straight-line arithmetic that compilers vectorize: 2^n times a
// polynomial on
// [-ln2/2, ln2/2] (coefficients of Cephes' expf). Below -87 it is 0.
inline float ExpNonPositive(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float n = __builtin_floorf(clamped * 1.44269504088896341f + 0.5f);
  float r = clamped - n * 0.693359375f;
  r -= n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  const float power = __builtin_bit_cast(float, exponent);
  return x < -87.0f ? 0.0f : p * power;
}

}  // namespace aludel::cpu
