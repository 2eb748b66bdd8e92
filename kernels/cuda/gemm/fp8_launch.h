#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/gemm/fp8_index.h"

// How the kernels of fp8_gemm.cuh are launched, as launch.h says it of the others, and what they are given for absl::Hash, as
// launch_digest.h.
namespace aludel::cuda {

cudaError_t LaunchQuantizeFp8(const Fp8RowsArgs& args, cudaStream_t stream);
cudaError_t LaunchScaleFp8(const Fp8SumsArgs& args, cudaStream_t stream);
// `early` as in LaunchBehind.
cudaError_t LaunchFp8Skinny(const Fp8SkinnyArgs& args, bool early, cudaStream_t stream);

template <typename H>
H AbslHashValue(H h, const Fp8RowsArgs& args) {
  const auto& [rows, codes, scales] = args;
  return H::combine(std::move(h), rows, codes, scales);
}
template <typename H>
H AbslHashValue(H h, const Fp8SumsArgs& args) {
  const auto& [sums, sums_stride, a_scales, w_scales, bias, accumulate, out] = args;
  return H::combine(std::move(h), sums, sums_stride, a_scales, w_scales, bias, accumulate, out);
}
template <typename H>
H AbslHashValue(H h, const Fp8SkinnyArgs& args) {
  const auto& [w, w_scales, a, a_stride, in, bias, accumulate, out] = args;
  return H::combine(std::move(h), w, w_scales, a, a_stride, in, bias, accumulate, out);
}

}  // namespace aludel::cuda
