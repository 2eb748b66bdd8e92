#include "kernels/cuda/gemm/batch_gemm.cuh"

#include <cuda_runtime.h>

#include "kernels/cuda/gemm/batch_launch.h"

namespace aludel::cuda {
namespace {

// Shared memory lets two blocks run on an SM. Registers for a fourth would be one too few for 64 rows, which spills.
template <int kRowTiles>
__global__ void __launch_bounds__(kBatchThreads, 3) BatchProduct(const __grid_constant__ BatchArgs args) {
  extern __shared__ uint4 stages[];
  BatchBlock<kRowTiles>(args, reinterpret_cast<char*>(stages));
}

template <int kRowTiles>
cudaError_t Launch(const BatchArgs& args, cudaStream_t stream) {
  constexpr int kBytes = BatchSharedBytes(kRowTiles);
  // Past 48 KiB a kernel has to ask.
  const cudaError_t error =
      cudaFuncSetAttribute(BatchProduct<kRowTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  BatchProduct<kRowTiles><<<static_cast<unsigned>(args.cut.blocks), kBatchThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchBatchGemm(const BatchArgs& args, cudaStream_t stream) {
  if (args.out.rows == 0 || args.out.cols == 0) return cudaSuccess;
  if (args.out.rows <= 16) return Launch<2>(args, stream);
  if (args.out.rows <= 32) return Launch<4>(args, stream);
  return Launch<8>(args, stream);
}

}  // namespace aludel::cuda
