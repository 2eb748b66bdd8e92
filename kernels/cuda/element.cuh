#pragma once

#include <cstdint>

#include "kernels/tensor.h"

// Elements of either storage type as f32, the type every kernel computes in. The rounding is that of
// ToBf16 in tensor.h, bit for bit.
namespace aludel::cuda {

__device__ inline float Load(const float* p) { return *p; }
__device__ inline float Load(const Bf16* p) { return __uint_as_float(static_cast<uint32_t>(p->bits) << 16); }

__device__ inline uint16_t NarrowBits(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ inline void Store(float* p, float value) { *p = value; }
__device__ inline void Store(Bf16* p, float value) { p->bits = NarrowBits(value); }

// The value as it reads back from storage of type T.
template <typename T>
__device__ inline float Rounded(float value) {
  if constexpr (sizeof(T) == sizeof(Bf16)) {
    return __uint_as_float(static_cast<uint32_t>(NarrowBits(value)) << 16);
  } else {
    return value;
  }
}

// Calls f with a null pointer of the view's element type.
template <typename F>
auto WithElementType(DType dtype, const F& f) {
  return dtype == DType::kF32 ? f(static_cast<float*>(nullptr)) : f(static_cast<Bf16*>(nullptr));
}

// Sum over a block of whole warps. `scratch` [32] is shared; every thread gets the sum, in one fixed order.
__device__ inline float BlockSum(float value, float* scratch) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += scratch[warp];
  return sum;
}

}  // namespace aludel::cuda
