#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"

// Eight elements at once, 16-byte aligned: kernels bound by memory reach its rate only with whole 16-byte
// loads and stores where elements are bf16.
namespace aludel::cuda {

constexpr int kVector = 8;

__device__ inline void LoadVector(const float* p, float (&x)[kVector]) {
  const float4 low = reinterpret_cast<const float4*>(p)[0];
  const float4 high = reinterpret_cast<const float4*>(p)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

__device__ inline void LoadVector(const Bf16* p, float (&x)[kVector]) {
  const uint4 bits = *reinterpret_cast<const uint4*>(p);
  const uint32_t words[kVector / 2] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ inline void StoreVector(float* p, const float (&x)[kVector]) {
  reinterpret_cast<float4*>(p)[0] = float4{x[0], x[1], x[2], x[3]};
  reinterpret_cast<float4*>(p)[1] = float4{x[4], x[5], x[6], x[7]};
}

__device__ inline void StoreVector(Bf16* p, const float (&x)[kVector]) {
  uint32_t words[kVector / 2];
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    words[i] = NarrowBits(x[2 * i]) | static_cast<uint32_t>(NarrowBits(x[2 * i + 1])) << 16;
  }
  *reinterpret_cast<uint4*>(p) = uint4{words[0], words[1], words[2], words[3]};
}

// Whether every row of the view, from any column that is a multiple of kVector on, can be accessed so.
inline bool TakesVectors(const TensorView& view) {
  return view.cols % kVector == 0 && view.stride % kVector == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
}

}  // namespace aludel::cuda
