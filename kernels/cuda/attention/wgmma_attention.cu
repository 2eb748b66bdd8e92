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
  AttendInGroups<Shape>(args, reinterpret_cast<char*>(shared) + (over == 0 ? 0 : Shape::kAlignment - over));
}

template <typename Shape>
cudaError_t LaunchShape(const AttentionArgs& args, int64_t blocks, cudaStream_t stream) {
  static_assert(Shape::kQueries == kWgmmaQueries && Shape::kKeys == kWgmmaKeyTile);
  constexpr int kBytes = Shape::kSharedBytes + Shape::kAlignment;
  static_assert(kBytes <= 227 << 10);
  const cudaError_t error =
      cudaFuncSetAttribute(WgmmaAttention<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  WgmmaAttention<Shape><<<static_cast<unsigned>(blocks), Shape::kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchWgmmaAttention(const AttentionArgs& args, int64_t blocks, cudaStream_t stream) {
  if (blocks == 0) return cudaSuccess;
  return args.kv.head_dim == 64 ? LaunchShape<WgmmaShape<64>>(args, blocks, stream)
                                : LaunchShape<WgmmaShape<128>>(args, blocks, stream);
}

}  // namespace aludel::cuda
