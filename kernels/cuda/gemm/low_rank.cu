#include "kernels/cuda/gemm/low_rank.cuh"

#include <type_traits>

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

template <typename T, bool kVectors>
__global__ void __launch_bounds__(kShrinkThreads, 2) Shrink(const __grid_constant__ LowRankArgs args) {
  __shared__ float shared[kShrinkSharedBytes / sizeof(float)];
  ShrinkTile<T, kVectors>(args, shared);
}

template <typename T, typename Out>
__global__ void __launch_bounds__(kExpandThreads) Expand(const __grid_constant__ LowRankArgs args) {
  __shared__ float shared[kExpandSharedBytes / sizeof(float)];
  ExpandTile<T, Out>(args, shared);
}

}  // namespace

cudaError_t LaunchShrink(const LowRankArgs& args, cudaStream_t stream) {
  const dim3 grid(args.count, (args.most_rank + kLowRankRanks - 1) / kLowRankRanks);
  return WithElementType(args.x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto kernel = TakesVectors(args.x) ? Shrink<T, true> : Shrink<T, false>;
    kernel<<<grid, kShrinkThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

cudaError_t LaunchExpand(const LowRankArgs& args, cudaStream_t stream) {
  const dim3 grid(args.count, args.most_out_tiles);
  const auto kernel = args.x.dtype == DType::kF32     ? Expand<float, float>
                      : args.out.dtype == DType::kF32 ? Expand<Bf16, float>
                                                      : Expand<Bf16, Bf16>;
  kernel<<<grid, kExpandThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace aludel::cuda
