#include "kernels/cuda/gemm/fp8_plans.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm/cublas_lt_loader.h"
#include "kernels/cuda/gemm/fastest.h"
#include "kernels/cuda/gemm/fp8_index.h"

namespace aludel::cuda {
namespace {

#if CUBLAS_VERSION >= 120900
// Scales by row and column.
bool SetScaleModes(LtPlan* plan) {
  const auto mode = static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
  return SetAttribute(plan, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode) &&
         SetAttribute(plan, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
}
#else
bool SetScaleModes(LtPlan*) { return false; }
#endif

bool SetScales(LtPlan* plan, const Fp8Operands& product) {
  return SetAttribute(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.w_scales) &&
         SetAttribute(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a_scales);
}

bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kFp8Piece == 0; }

// Of what is aligned to a piece: whole allocations have more.
uint32_t Alignment(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 256 == 0 ? 256 : kFp8Piece;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Fp8Plans>> Fp8Plans::Create(const std::string& device_name,
                                                           bool time_algorithms) {
  if (const absl::Status loaded = LoadCublasLt(); !loaded.ok()) return loaded;
  cublasLtHandle_t handle = nullptr;
  const absl::Status status =
      FromCublas(cublasLtCreate(&handle), absl::StrCat(device_name, ": create a cuBLASLt handle"));
  if (!status.ok()) return status;
  return std::unique_ptr<Fp8Plans>(new Fp8Plans(handle, time_algorithms));
}

Fp8Plans::~Fp8Plans() { cublasLtDestroy(handle_); }

std::optional<LtPlan> Fp8Plans::Describe(const Fp8Operands& product) {
  const TensorView& out = product.out;
  LtPlan plan{};
  bool ok =
      cublasLtMatmulDescInit(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
      SetAttribute(&plan, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T) &&
      cublasLtMatrixLayoutInit(&plan.w, CUDA_R_8F_E4M3, product.in, out.cols, product.in) ==
          CUBLAS_STATUS_SUCCESS &&
      cublasLtMatrixLayoutInit(&plan.a, CUDA_R_8F_E4M3, product.in, out.rows, product.in) ==
          CUBLAS_STATUS_SUCCESS &&
      cublasLtMatrixLayoutInit(&plan.out, out.dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF, out.cols,
                               out.rows, out.stride) == CUBLAS_STATUS_SUCCESS;
  if (product.w_scales != nullptr) ok = ok && SetScaleModes(&plan) && SetScales(&plan, product);
  if (!ok) return std::nullopt;
  return plan;
}

std::optional<LtPlan> Fp8Plans::Find(const Fp8Operands& product, CudaStream& stream) {
  const TensorView& out = product.out;
  ALUDEL_CHECK(product.in % kFp8Piece == 0 && IsAligned(product.a) && IsAligned(product.w));
  ALUDEL_CHECK((product.a_scales == nullptr) == (product.w_scales == nullptr));
  const auto bytes = static_cast<int64_t>(SizeOf(out.dtype));
  if (out.cols * bytes % kFp8Piece != 0 || out.stride * bytes % kFp8Piece != 0 || !IsAligned(out.data)) {
    return std::nullopt;
  }
  const LtAlignment alignment{Alignment(product.w), Alignment(product.a), Alignment(out.data)};
  const Key key{out.rows,
                out.cols,
                product.in,
                out.stride,
                out.dtype,
                product.accumulate,
                product.w_scales != nullptr,
                alignment.w,
                alignment.a,
                alignment.out};
  const auto describe = [&] { return Describe(product); };
  const auto fastest = [&](absl::Span<const LtPlan> plans) {
    const auto run = [&](size_t i, void* to) {
      return Run(plans[i], product, to, stream.workspace(), stream.get()).ok();
    };
    return FastestProduct(plans.size(), product.accumulate, out, run, stream);
  };
  return plans_.Find(key, Flops(out, product.in), alignment, describe, fastest);
}

absl::Status Fp8Plans::Run(LtPlan plan, const Fp8Operands& product, void* to, void* workspace,
                           cudaStream_t stream) const {
  if (product.w_scales != nullptr && !SetScales(&plan, product)) {
    return absl::InternalError("cuBLASLt refuses the addresses of scales");
  }
  const float alpha = 1.0f;
  const float beta = product.accumulate ? 1.0f : 0.0f;
  const TensorView& out = product.out;
  const cublasStatus_t status = cublasLtMatmul(
      handle_, &plan.operation, &alpha, product.w, &plan.w, product.a, &plan.a, &beta, out.data, &plan.out,
      to, &plan.out, &plan.algorithm, workspace, CudaStream::kWorkspaceBytes, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return FromCublas(status, absl::StrFormat("multiply [%d, %d] by a %d x %d fp8 matrix", out.rows, product.in,
                                            out.cols, product.in));
}

}  // namespace aludel::cuda
