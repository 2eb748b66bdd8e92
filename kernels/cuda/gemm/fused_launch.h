#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/gemm/fused_args.h"

// How the kernels of fused_gemm.cuh are launched, as launch.h says it of the others, and what they are given for absl::Hash,
// as launch_digest.h.
namespace aludel::cuda {

// angles [table.tokens, 2, half].
cudaError_t LaunchRopeAngles(const float* inverse_frequency, float attention_factor, int half,
                             const SequenceTable& table, float* angles, cudaStream_t stream);
// `blocks`: of kSkinnyThreads threads that run at once, see SkinnyBlocks. `early` as in LaunchBehind.
cudaError_t LaunchQkv(const QkvArgs& args, int blocks, bool early, cudaStream_t stream);
cudaError_t LaunchGateUp(const GateArgs& args, int blocks, bool early, cudaStream_t stream);

template <typename H>
H AbslHashValue(H h, const NormedRows& a) {
  const auto& [x, stride, rows, in, weight, eps] = a;
  return H::combine(std::move(h), x, stride, rows, in, weight, eps);
}
template <typename H>
H AbslHashValue(H h, const QkvArgs& args) {
  const auto& [a, q_w, kv_w, bias, angles, q, q_stride, heads, table, kv] = args;
  return H::combine(std::move(h), a, q_w, kv_w, bias, angles, q, q_stride, heads, table, kv);
}
template <typename H>
H AbslHashValue(H h, const GateArgs& args) {
  const auto& [a, w, bias, out, out_stride, cols] = args;
  return H::combine(std::move(h), a, w, bias, out, out_stride, cols);
}

}  // namespace aludel::cuda
