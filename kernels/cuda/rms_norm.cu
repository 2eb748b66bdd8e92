#include "kernels/cuda/rms_norm.cuh"

#include <type_traits>

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

template <typename In, typename Out, bool kVectors>
__global__ void Norm(const In* x, int64_t x_stride, int runs, int64_t width, const float* weight, float eps,
                     Out* out, int64_t out_stride) {
  __shared__ float scratch[32];
  NormRun<In, Out, kVectors>(x, x_stride, runs, width, weight, eps, out, out_stride, scratch);
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
