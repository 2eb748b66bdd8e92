#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/fp8_pages.h"

// Elements of KV pages: those of element.cuh, and FP8.
namespace aludel::cuda {

__device__ inline float Load(const Fp8* p) { return FromFp8(*p); }
__device__ inline void Store(Fp8* p, float value) { *p = ToFp8(value); }
__device__ inline void StoreVector(Fp8* p, const float (&x)[kVector]) {
  uint32_t words[kVector / 4] = {};
#pragma unroll
  for (int i = 0; i < kVector; ++i) words[i / 4] |= uint32_t{ToFp8(x[i]).bits} << i % 4 * 8;
  *reinterpret_cast<uint64_t*>(p) = words[0] | static_cast<uint64_t>(words[1]) << 32;
}

// A number of a row of K (before RoPE) or V as pages take it: rounded as it would have come over the wire, see ops.h.
template <typename Page>
__device__ inline float AsRow(float value) {
  if constexpr (std::is_same_v<Page, float>) {
    return value;
  } else {
    return Rounded<Bf16>(value);
  }
}

template <typename Page>
constexpr float kKeyScale = std::is_same_v<Page, Fp8> ? KeyScale(DType::kFp8) : 1.0f;

// Eight numbers of FP8, four in each word, as bf16. A code moved to where bf16 has its exponent is that number but for a
// factor of 2^120, subnormals too.
__device__ inline uint4 WidenFp8(uint32_t low, uint32_t high) {
  constexpr uint32_t kFactors = 0x7b807b80;           // 2^120, twice
  constexpr uint32_t kChoices[2] = {0x1404, 0x3424};  // two codes, each the upper half of 16 bits
  const uint32_t codes[2] = {low, high};
  uint32_t wide[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = ChooseBytes(codes[i / 2], kChoices[i % 2]);
    wide[i] = MultiplyBf16((pair & 0x80008000u) | (pair & 0x7f007f00u) >> 4, kFactors);
  }
  // NaN, which is rare, would have become 480: the carry out of its seven ones tells it.
  constexpr uint32_t kOnes = 0x01010101, kMagnitudes = 0x7f7f7f7f, kCarries = 0x80808080;
  const uint32_t nans[2] = {((low & kMagnitudes) + kOnes) & kCarries,
                            ((high & kMagnitudes) + kOnes) & kCarries};
  if ((nans[0] | nans[1]) != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t found = ChooseBytes(nans[i / 2], kChoices[i % 2]);  // 0x8000 or 0, twice
      wide[i] |= found - (found >> 8);                                   // 0x7f80 or 0
    }
  }
  return {wide[0], wide[1], wide[2], wide[3]};
}

// Calls f with a null pointer of the pages' element type.
template <typename F>
auto WithPageType(DType dtype, const F& f) {
  return dtype == DType::kFp8 ? f(static_cast<Fp8*>(nullptr)) : WithElementType(dtype, f);
}

}  // namespace aludel::cuda
