#include "kernels/cuda/attention/wgmma_attention.cuh"

#include "kernels/cuda/launch.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "warpgroup products exist in sm_90a's code only"
#endif

namespace aludel::cuda {
namespace {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    WgmmaAttention(const __grid_constant__ AttentionArgs args) {
  extern __shared__ uint4 shared[];
  // The launcher has asked for as much more as this may skip.
  const uint32_t over = SharedAddress(shared) % Shape::kAlignment;
  AttendUnitInGroups<Shape>(args,
                            reinterpret_cast<char*>(shared) + (over == 0 ? 0 : Shape::kAlignment - over));
}

template <typename Shape>
cudaError_t LaunchShape(const AttentionArgs& args, int64_t units, cudaStream_t stream) {
  static_assert(Shape::kQueries == kWgmmaQueries && Shape::kKeys == kWgmmaKeyTile);
  constexpr int kBytes = Shape::kSharedBytes + Shape::kAlignment;
  static_assert(kBytes <= 227 << 10);
  const cudaError_t error =
      cudaFuncSetAttribute(WgmmaAttention<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(units), static_cast<unsigned>(args.kv.kv_heads));
  WgmmaAttention<Shape><<<grid, Shape::kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchWgmmaAttention(const AttentionArgs& args, int64_t units, cudaStream_t stream) {
  if (units == 0) return cudaSuccess;
  return args.kv.head_dim == 64 ? LaunchShape<WgmmaShape<64>>(args, units, stream)
                                : LaunchShape<WgmmaShape<128>>(args, units, stream);
}

}  // namespace aludel::cuda
