#pragma once

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/vector.cuh"

// Bound by memory: each element is read twice (the second time from L1 or L2) and written once.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

// One element, or a vector of them.
template <typename T>
__device__ void LoadStep(const T* p, float (&x)[1]) {
  x[0] = Load(p);
}
template <typename T>
__device__ void LoadStep(const T* p, float (&x)[kVector]) {
  LoadVector(p, x);
}
template <typename T>
__device__ void StoreStep(T* p, const float (&x)[1]) {
  Store(p, x[0]);
}
template <typename T>
__device__ void StoreStep(T* p, const float (&x)[kVector]) {
  StoreVector(p, x);
}

// One row of `width` columns, by all threads of a block. `scratch` [32] is shared.
template <typename In, typename Out, bool kVectors>
__device__ void NormRow(const In* x, int64_t width, const float* weight, float eps, Out* out,
                        float* scratch) {
  constexpr int kStep = kVectors ? kVector : 1;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x * kStep; i < width; i += blockDim.x * kStep) {
    float values[kStep];
    LoadStep(x + i, values);
#pragma unroll
    for (int j = 0; j < kStep; ++j) sum += values[j] * values[j];
  }
  // In place is safe: no thread writes before the barrier in BlockSum, and a thread writes what it alone reads.
  const float scale = 1.0f / sqrtf(BlockSum(sum, scratch) / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x * kStep; i < width; i += blockDim.x * kStep) {
    float values[kStep], weights[kStep];
    LoadStep(x + i, values);
    LoadStep(weight + i, weights);
#pragma unroll
    for (int j = 0; j < kStep; ++j) values[j] = values[j] * scale * weights[j];
    StoreStep(out + i, values);
  }
}

// One block per run of `width` columns; blockIdx.x = row * runs + run. `scratch` [32] is shared.
template <typename In, typename Out, bool kVectors>
__device__ void NormRun(const In* x, int64_t x_stride, int runs, int64_t width, const float* weight,
                        float eps, Out* out, int64_t out_stride, float* scratch) {
  const int64_t row = blockIdx.x / runs;
  const int64_t column = blockIdx.x % runs * width;
  NormRow<In, Out, kVectors>(x + row * x_stride + column, width, weight, eps, out + row * out_stride + column,
                             scratch);
}

}  // namespace aludel::cuda
