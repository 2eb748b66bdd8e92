#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/warp.cuh"

// Bound by memory. One block per row, so that nothing here divides and columns are read in order.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

template <typename Src, typename Dst, typename Index, bool kVectors>
__device__ void CopyRow(const Src* src, int64_t src_stride, const Index* rows, Dst* dst, int64_t dst_stride,
                        int64_t cols) {
  const int64_t row = blockIdx.x;
  src += (rows == nullptr ? row : static_cast<int64_t>(rows[row])) * src_stride;
  dst += row * dst_stride;
  if constexpr (kVectors) {
    for (int64_t c = threadIdx.x * kVector; c < cols; c += blockDim.x * kVector) {
      float x[kVector];
      LoadVector(src + c, x);
      StoreVector(dst + c, x);
    }
  } else {
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) Store(dst + c, Load(src + c));
  }
}

// out = sums + bias, rounded.
template <bool kVectors>
__device__ void AddBiasToRow(const float* sums, int64_t sums_stride, const float* bias, Bf16* out,
                             int64_t out_stride, int64_t cols) {
  const int64_t row = blockIdx.x;
  sums += row * sums_stride;
  out += row * out_stride;
  if constexpr (kVectors) {
    for (int64_t c = threadIdx.x * kVector; c < cols; c += blockDim.x * kVector) {
      float x[kVector], b[kVector];
      LoadVector(sums + c, x);
      LoadVector(bias + c, b);
#pragma unroll
      for (int i = 0; i < kVector; ++i) x[i] += b[i];
      StoreVector(out + c, x);
    }
  } else {
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) Store(out + c, sums[c] + bias[c]);
  }
}

// sums += x, in double.
__device__ inline void AddRowTo(double* sums, const float* x, int64_t stride, int64_t cols) {
  sums += blockIdx.x * cols;
  x += blockIdx.x * stride;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) sums[c] += static_cast<double>(x[c]);
}

__device__ inline float SiluOf(float x) {
  // sigmoid through exp(-|x|), which cannot overflow; the quotient's divisor is between 1 and 2, where the quick one is exact
  // to two units in the last place.
  constexpr float kLog2E = 1.44269504088896340736f;
  const float e = Exp2(-fabsf(x) * kLog2E);
  return x * __fdividef(x < 0.0f ? e : 1.0f, 1.0f + e);
}

// out = silu(x), times x[cols + c] where `gated`.
template <typename In, typename Out, bool kVectors>
__device__ void SiluRow(const In* x, int64_t in_stride, Out* out, int64_t out_stride, int64_t cols,
                        bool gated) {
  const int64_t row = blockIdx.x;
  x += row * in_stride;
  out += row * out_stride;
  if constexpr (kVectors) {
    for (int64_t c = threadIdx.x * kVector; c < cols; c += blockDim.x * kVector) {
      float gate[kVector], up[kVector] = {};
      LoadVector(x + c, gate);
      if (gated) LoadVector(x + cols + c, up);
#pragma unroll
      for (int i = 0; i < kVector; ++i) gate[i] = SiluOf(gate[i]) * (gated ? up[i] : 1.0f);
      StoreVector(out + c, gate);
    }
  } else {
    for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
      Store(out + c, SiluOf(Load(x + c)) * (gated ? Load(x + cols + c) : 1.0f));
    }
  }
}

}  // namespace aludel::cuda
