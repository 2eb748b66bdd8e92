#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.h"

// Bound by memory: each element is read twice (the second time from L1 or L2) and written once.

namespace aludel::cuda {
namespace {

// One block per run of `width` columns; blockIdx.x = row * runs + run.
template <typename In, typename Out>
__global__ void Norm(const In* x, int64_t x_stride, int runs, int64_t width, const float* weight, float eps,
                     Out* out, int64_t out_stride) {
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x / runs;
  const int64_t column = blockIdx.x % runs * width;
  x += row * x_stride + column;
  out += row * out_stride + column;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float value = Load(x + i);
    sum += value * value;
  }
  // In place is safe: nobody writes before the barrier in BlockSum, and a thread writes what it alone reads.
  const float scale = 1.0f / sqrtf(BlockSum(sum, scratch) / static_cast<float>(width) + eps);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) Store(out + i, Load(x + i) * scale * weight[i]);
}

}  // namespace

cudaError_t LaunchNorm(const TensorView& x, int64_t width, const float* weight, float eps,
                       const TensorView& out, cudaStream_t stream) {
  const int64_t runs = x.cols / width;
  if (x.rows * runs == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(x.rows * runs);
  const unsigned threads = width >= 1024 ? 256 : 64;
  return WithElementType(x.dtype, [&](auto* in_type) {
    return WithElementType(out.dtype, [&](auto* out_type) {
      Norm<<<grid, threads, 0, stream>>>(static_cast<decltype(in_type)>(x.data), x.stride,
                                         static_cast<int>(runs), width, weight, eps,
                                         static_cast<decltype(out_type)>(out.data), out.stride);
      return cudaGetLastError();
    });
  });
}

}  // namespace aludel::cuda
