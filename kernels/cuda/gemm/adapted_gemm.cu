#include "kernels/cuda/gemm/adapted_gemm.cuh"

#include <algorithm>

#include "kernels/cuda/gemm/adapted_launch.h"
#include "kernels/cuda/gemm/launch_fused.cuh"

namespace aludel::cuda {
namespace {

__global__ void __launch_bounds__(kSkinnyThreads, kSkinnyBlocksPerSm)
    AdaptedProduct(const __grid_constant__ SkinnyArgs args, const __grid_constant__ AddedArgs added) {
  __shared__ float sums[kSkinnySharedBytes / sizeof(float)];
  SkinnyBf16<1>(args, sums, AdaptersAdded{added});
}

template <typename Page>
__global__ void __launch_bounds__(kSkinnyThreads, kSkinnyBlocksPerSm)
    AdaptedQkv(const __grid_constant__ QkvArgs args, const __grid_constant__ AddedArgs added) {
  extern __shared__ uint4 rows[];
  __shared__ float sums[kSkinnySharedBytes / sizeof(float)];
  QkvBlock<Page>(args, reinterpret_cast<Bf16*>(rows), sums, AdaptersAdded{added});
}

__global__ void __launch_bounds__(kSkinnyThreads, kSkinnyBlocksPerSm)
    AdaptedGateUp(const __grid_constant__ GateArgs args, const __grid_constant__ AddedArgs added) {
  extern __shared__ uint4 rows[];
  __shared__ float sums[kSkinnySharedBytes / sizeof(float)];
  GateUpBlock(args, reinterpret_cast<Bf16*>(rows), sums, AdaptersAdded{added});
}

}  // namespace

cudaError_t LaunchAdaptedGemm(const SkinnyArgs& args, const AddedArgs& added, int blocks, bool early,
                              cudaStream_t stream) {
  if (args.out.rows == 0 || args.out.cols == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(std::min(SkinnyTiles(args.out.cols), blocks));
  return LaunchBehind(early, AdaptedProduct, grid, kSkinnyThreads, 0, stream, args, added);
}

cudaError_t LaunchAdaptedQkv(const QkvArgs& args, const AddedArgs& added, int blocks, bool early,
                             cudaStream_t stream) {
  if (args.a.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(std::min(QkvTiles(args), blocks));
  return WithPageType(args.kv.dtype, [&](auto* page) {
    return LaunchFused(AdaptedQkv<std::remove_pointer_t<decltype(page)>>, grid, early, args, stream, added);
  });
}

cudaError_t LaunchAdaptedGateUp(const GateArgs& args, const AddedArgs& added, int blocks, bool early,
                                cudaStream_t stream) {
  if (args.a.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(std::min(GateTiles(args), blocks));
  return LaunchFused(AdaptedGateUp, grid, early, args, stream, added);
}

}  // namespace aludel::cuda
