#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/gemm/adapted_index.h"
#include "kernels/cuda/gemm/skinny_index.h"

// How the kernels of adapted_gemm.cuh are launched, as launch.h and fused_launch.h say it of those without adapters, and what
// they are given for absl::Hash, as launch_digest.h.
namespace aludel::cuda {

// At most kFusedRows rows, weights of bf16.
cudaError_t LaunchAdaptedGemm(const SkinnyArgs& args, const AddedArgs& added, int blocks, bool early,
                              cudaStream_t stream);
cudaError_t LaunchAdaptedQkv(const QkvArgs& args, const AddedArgs& added, int blocks, bool early,
                             cudaStream_t stream);
cudaError_t LaunchAdaptedGateUp(const GateArgs& args, const AddedArgs& added, int blocks, bool early,
                                cudaStream_t stream);

template <typename H>
H AbslHashValue(H h, const AddedSlice& slice) {
  const auto& [a, b, scale, rank, out_begin, outputs, row, first_sum] = slice;
  return H::combine(std::move(h), a, b, scale, rank, out_begin, outputs, row, first_sum);
}
template <typename H>
H AbslHashValue(H h, const AddedArgs& args) {
  const auto& [slices, first_slice, sum_count, sums, counters] = args;
  h = H::combine_contiguous(std::move(h), slices, kMostSlices);
  h = H::combine_contiguous(std::move(h), first_slice, kFusedRows + 1);
  return H::combine(std::move(h), sum_count, sums, counters);
}

}  // namespace aludel::cuda
