#include <cstdint>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/lt_plan.h"

namespace aludel::cuda {
namespace {

// cuBLAS counts columns first: a row-major matrix is its transpose there.
bool Init(const TensorView& matrix, cublasLtMatrixLayoutOpaque_t* layout) {
  return cublasLtMatrixLayoutInit(layout, CudaType(matrix.dtype), matrix.cols, matrix.rows, matrix.stride) ==
         CUBLAS_STATUS_SUCCESS;
}

}  // namespace

// As out^T = b^T a^T. Calibration's products take far longer than it takes to ask for an algorithm, so none is kept.
absl::Status GemmEngine::MultiplyFree(const TrainingOps::Factor& a, const TrainingOps::Factor& b,
                                      bool accumulate, const TensorView& out, CudaStream& stream) {
  LtPlan plan{};
  const bool described =
      cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
      SetAttribute(&plan, CUBLASLT_MATMUL_DESC_TRANSA, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N) &&
      SetAttribute(&plan, CUBLASLT_MATMUL_DESC_TRANSB, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N) &&
      Init(b.matrix, &plan.w) && Init(a.matrix, &plan.a) && Init(out, &plan.out);
  const LtAlignment alignment{Alignment(b.matrix.data, b.matrix.dtype),
                              Alignment(a.matrix.data, a.matrix.dtype), Alignment(out.data, out.dtype)};
  const std::string what = absl::StrFormat("multiply [%d, %d] by [%d, %d] in %s", a.rows(), a.cols(),
                                           b.rows(), b.cols(), Name(a.matrix.dtype));
  const std::vector<LtPlan> plans =
      described ? OfferedPlans(handle_, plan, alignment, 1) : std::vector<LtPlan>();
  if (plans.empty()) return absl::UnimplementedError(absl::StrCat(what, ": cuBLASLt has no algorithm"));
  return RunPlan(plans.front(), a.matrix, b.matrix.data, nullptr, accumulate, out, out.data,
                 stream.workspace(), stream.get());
}

void CudaOps::Multiply(const Factor& a, const Factor& b, bool accumulate, const TensorView& out,
                       Stream stream) {
  ALUDEL_CHECK(a.cols() == b.rows() && out.rows == a.rows() && out.cols == b.cols());
  ALUDEL_CHECK(a.cols() > 0 && out.rows > 0 && out.cols > 0);
  ALUDEL_CHECK(a.matrix.dtype == b.matrix.dtype && out.dtype == DType::kF32);
  CudaStream& state = Enter(stream);
  ALUDEL_CHECK(state.runs());  // not of Replay's work
  state.Collect(gemm_->MultiplyFree(a, b, accumulate, out, state));
}

void CudaOps::AddTo(double* sums, const TensorView& x, Stream stream) {
  ALUDEL_CHECK(x.dtype == DType::kF32);
  CudaStream& state = Enter(stream);
  state.Launch("launch AddTo", LaunchAddTo, sums, x);
}

}  // namespace aludel::cuda
