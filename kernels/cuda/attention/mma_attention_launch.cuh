#pragma once

#include "kernels/cuda/attention/mma_attention.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_behind.cuh"

// The __global__ half of mma_attention.cuh, shared by the files that each compile some head sizes.
namespace aludel::cuda {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads) MmaAttention(const __grid_constant__ AttentionArgs args) {
  extern __shared__ uint4 shared[];
  AttendUnit<Shape>(args, reinterpret_cast<char*>(shared));
}

template <typename Shape>
cudaError_t LaunchMmaShape(const AttentionArgs& args, int64_t units, bool early, cudaStream_t stream) {
  // Past 48 KiB a kernel has to ask.
  const cudaError_t error = cudaFuncSetAttribute(
      MmaAttention<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(units * args.kv.kv_heads));
  return LaunchBehind(early, MmaAttention<Shape>, grid, Shape::kThreads, Shape::kSharedBytes, stream, args);
}

template <int kDim>
cudaError_t LaunchMmaDim(const AttentionArgs& args, int64_t units, bool decode, bool early,
                         cudaStream_t stream) {
  if (args.kv.dtype == DType::kFp8) {
    return decode ? LaunchMmaShape<OverFp8<DecodeShape<kDim>>>(args, units, early, stream)
                  : LaunchMmaShape<OverFp8<PrefillShape<kDim>>>(args, units, early, stream);
  }
  return decode ? LaunchMmaShape<DecodeShape<kDim>>(args, units, early, stream)
                : LaunchMmaShape<PrefillShape<kDim>>(args, units, early, stream);
}

// Head sizes up to 96 and from there on.
cudaError_t LaunchNarrowMma(const AttentionArgs& args, int64_t units, bool decode, bool early,
                            cudaStream_t stream);
cudaError_t LaunchWideMma(const AttentionArgs& args, int64_t units, bool decode, bool early,
                          cudaStream_t stream);

}  // namespace aludel::cuda
