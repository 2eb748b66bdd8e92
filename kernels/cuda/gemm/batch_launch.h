#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/gemm/batch_index.h"

namespace aludel::cuda {

// How the kernel of batch_gemm.cuh is launched, as launch.h says it of the others: at most kBatchRows rows of `a`.
cudaError_t LaunchBatchGemm(const BatchArgs& args, cudaStream_t stream);

}  // namespace aludel::cuda
