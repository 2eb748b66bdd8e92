#include "kernels/cuda/gemm/cublas_lt_loader.h"

#include <cublasLt.h>

#include "gtest/gtest.h"

namespace aludel::cuda {
namespace {

// Needs the toolkit that this was built with, but neither a driver nor a GPU.
TEST(CublasLtLoader, ForwardsCallsToTheToolkitsLibrary) {
  const absl::Status status = LoadCublasLt();
  ASSERT_TRUE(status.ok()) << std::string(status.message());
  cublasLtMatmulDescOpaque_t operation;
  EXPECT_EQ(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  cublasLtMatrixLayoutOpaque_t layout;
  EXPECT_EQ(cublasLtMatrixLayoutInit(&layout, CUDA_R_16BF, 8, 8, 8), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreferenceOpaque_t preference;
  EXPECT_EQ(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
  EXPECT_STRNE(cublasLtGetStatusString(CUBLAS_STATUS_SUCCESS), "cuBLASLt is not loaded");
}

}  // namespace
}  // namespace aludel::cuda
