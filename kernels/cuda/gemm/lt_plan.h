#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace aludel::cuda {

// A product of cuBLASLt, and the algorithm that makes it: plain values of the library's. Its first matrix is W, see
// GemmEngine::Describe.
struct LtPlan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t w, a, out;
  cublasLtMatmulAlgo_t algorithm;
};

// What the matrices' addresses are multiples of, in bytes.
struct LtAlignment {
  uint32_t w, a, out;
};

inline cudaDataType_t CudaType(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

// Two classes above an element's own: whole allocations and whole 16-byte loads. More would split the cache.
inline uint32_t Alignment(const void* data, DType dtype) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (address % 256 == 0) return 256;
  if (address % 16 == 0) return 16;
  return static_cast<uint32_t>(SizeOf(dtype));
}

// True: it was set.
template <typename T>
bool SetAttribute(LtPlan* plan, cublasLtMatmulDescAttributes_t attribute, T value) {
  return cublasLtMatmulDescSetAttribute(&plan->operation, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

// `plan` with each of the algorithms that cuBLASLt offers for it, its first before the others; at most so many. They need no more
// than CudaStream::kWorkspaceBytes.
std::vector<LtPlan> OfferedPlans(cublasLtHandle_t handle, LtPlan plan, const LtAlignment& alignment,
                                 int most);

// Whether the plan's algorithm, which was offered for another number of rows, makes this product, too, in as large a workspace.
bool CanRun(cublasLtHandle_t handle, LtPlan plan);

}  // namespace aludel::cuda
