#include <type_traits>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.cuh"

// Bound by memory: each element is read twice (the second time from L1 or L2) and written once.

namespace aludel::cuda {
namespace {

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

// One block per run of `width` columns; blockIdx.x = row * runs + run.
template <typename In, typename Out, bool kVectors>
__global__ void Norm(const In* x, int64_t x_stride, int runs, int64_t width, const float* weight, float eps,
                     Out* out, int64_t out_stride) {
  __shared__ float scratch[32];
  constexpr int kStep = kVectors ? kVector : 1;
  const int64_t row = blockIdx.x / runs;
  const int64_t column = blockIdx.x % runs * width;
  x += row * x_stride + column;
  out += row * out_stride + column;
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

}  // namespace

cudaError_t LaunchNorm(const TensorView& x, int64_t width, const float* weight, float eps,
                       const TensorView& out, cudaStream_t stream) {
  const int64_t runs = x.cols / width;
  if (x.rows * runs == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(x.rows * runs);
  const bool vectors = TakesVectors(x) && TakesVectors(out) && width % kVector == 0 &&
                       reinterpret_cast<uintptr_t>(weight) % 16 == 0;
  const int64_t steps = vectors ? width / kVector : width;
  const unsigned threads = steps >= 256 ? 256 : steps > 32 ? 64 : 32;
  return WithElementType(x.dtype, [&](auto* in_type) {
    return WithElementType(out.dtype, [&](auto* out_type) {
      using In = std::remove_pointer_t<decltype(in_type)>;
      using Out = std::remove_pointer_t<decltype(out_type)>;
      const auto kernel = vectors ? Norm<In, Out, true> : Norm<In, Out, false>;
      kernel<<<grid, threads, 0, stream>>>(static_cast<const In*>(x.data), x.stride, static_cast<int>(runs),
                                           width, weight, eps, static_cast<Out*>(out.data), out.stride);
      return cudaGetLastError();
    });
  });
}

}  // namespace aludel::cuda
