#include "kernels/cuda/gemm/lt_plan.h"

#include "kernels/cuda/cuda_stream.h"

namespace aludel::cuda {
namespace {

template <typename T>
bool Set(cublasLtMatmulPreferenceOpaque_t* preference, cublasLtMatmulPreferenceAttributes_t attribute,
         T value) {
  return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

}  // namespace

std::vector<LtPlan> OfferedPlans(cublasLtHandle_t handle, LtPlan plan, const LtAlignment& alignment,
                                 int most) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  const bool ok = cublasLtMatmulPreferenceInit(&preference) == CUBLAS_STATUS_SUCCESS &&
                  Set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CudaStream::kWorkspaceBytes) &&
                  Set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment.w) &&
                  Set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment.a) &&
                  Set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment.out) &&
                  Set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment.out);
  if (!ok) return {};
  std::vector<cublasLtMatmulHeuristicResult_t> results(most);
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, &plan.operation, &plan.w, &plan.a, &plan.out, &plan.out,
                                     &preference, most, results.data(), &found);
  if (status != CUBLAS_STATUS_SUCCESS) return {};
  std::vector<LtPlan> plans;
  for (int i = 0; i < found; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    plan.algorithm = results[i].algo;
    plans.push_back(plan);
  }
  return plans;
}

bool CanRun(cublasLtHandle_t handle, LtPlan plan) {
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, &plan.operation, &plan.w, &plan.a, &plan.out,
                                                        &plan.out, &plan.algorithm, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= CudaStream::kWorkspaceBytes;
}

}  // namespace aludel::cuda
