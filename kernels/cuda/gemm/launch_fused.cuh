#pragma once

#include "kernels/cuda/gemm/fused_args.h"
#include "kernels/cuda/gemm/skinny_gemm.cuh"
#include "kernels/cuda/launch_behind.cuh"

namespace aludel::cuda {

// kernel(args, more...) with the rows that it norms in shared memory.
template <typename Args, typename... More>
cudaError_t LaunchFused(void (*kernel)(Args, More...), unsigned grid, bool early, const Args& args,
                        cudaStream_t stream, const More&... more) {
  const size_t rows_bytes = FusedSharedBytes(args.a.rows, args.a.in);
  // Past 48 KiB, with what the sums take, a kernel has to ask.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(rows_bytes));
  if (error != cudaSuccess) return error;
  return LaunchBehind(early, kernel, grid, kSkinnyThreads, rows_bytes, stream, args, more...);
}

}  // namespace aludel::cuda
