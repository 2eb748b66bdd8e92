#include "kernels/cuda/gemm/fused_gemm.cuh"

#include <algorithm>

#include "kernels/cuda/gemm/fused_launch.h"
#include "kernels/cuda/gemm/launch_fused.cuh"

namespace aludel::cuda {
namespace {

__global__ void RopeAngles(const float* inverse_frequency, float attention_factor, int half,
                           SequenceTable table, float* angles) {
  AnglesOfToken(inverse_frequency, attention_factor, half, table, angles);
}

template <typename Page>
__global__ void __launch_bounds__(kSkinnyThreads, kSkinnyBlocksPerSm)
    NormQkv(const __grid_constant__ QkvArgs args) {
  extern __shared__ uint4 rows[];
  __shared__ float sums[kSkinnySharedBytes / sizeof(float)];
  QkvBlock<Page>(args, reinterpret_cast<Bf16*>(rows), sums);
}

__global__ void __launch_bounds__(kSkinnyThreads, kSkinnyBlocksPerSm)
    NormGateUp(const __grid_constant__ GateArgs args) {
  extern __shared__ uint4 rows[];
  __shared__ float sums[kSkinnySharedBytes / sizeof(float)];
  GateUpBlock(args, reinterpret_cast<Bf16*>(rows), sums);
}

}  // namespace

cudaError_t LaunchRopeAngles(const float* inverse_frequency, float attention_factor, int half,
                             const SequenceTable& table, float* angles, cudaStream_t stream) {
  if (table.tokens == 0) return cudaSuccess;
  RopeAngles<<<static_cast<unsigned>(table.tokens), 64, 0, stream>>>(inverse_frequency, attention_factor,
                                                                     half, table, angles);
  return cudaGetLastError();
}

cudaError_t LaunchQkv(const QkvArgs& args, int blocks, bool early, cudaStream_t stream) {
  if (args.a.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(std::min(QkvTiles(args), blocks));
  return WithPageType(args.kv.dtype, [&](auto* page) {
    return LaunchFused(NormQkv<std::remove_pointer_t<decltype(page)>>, grid, early, args, stream);
  });
}

cudaError_t LaunchGateUp(const GateArgs& args, int blocks, bool early, cudaStream_t stream) {
  if (args.a.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(std::min(GateTiles(args), blocks));
  return LaunchFused(NormGateUp, grid, early, args, stream);
}

}  // namespace aludel::cuda
