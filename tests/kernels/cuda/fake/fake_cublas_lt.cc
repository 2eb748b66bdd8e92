#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cuda/gemm/cublas_lt_loader.h"
#include "kernels/e4m3.h"
#include "kernels/tensor.h"
#include "tests/kernels/cuda/fake/fake_world.h"

// The calls of gemm.cc, fp8_plans.cc, lt_plan.cc and training_ops.cc. Descriptors hold what they were given; a product is a loop over float sums.
namespace aludel::cuda::fake {
namespace {

struct Operation {
  cublasOperation_t transposed_w, transposed_a;
  cublasLtEpilogue_t epilogue;
  const float* bias;
  const float *scale_w, *scale_a;  // by what of the result, their modes say
  int32_t mode_w, mode_a;
};
struct Layout {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t stride;
};
struct Preference {
  size_t workspace;
  uint32_t alignment_w, alignment_a, alignment_out;
};
// What it was chosen for: a product must not promise less.
struct Algorithm {
  Preference plan;
  int place;  // among those that are offered
};
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <typename T>
void Put(void* opaque, const T& value) {
  std::memcpy(opaque, &value, sizeof(value));
}
template <typename T>
T Get(const void* opaque) {
  T value;
  std::memcpy(&value, opaque, sizeof(value));
  return value;
}

size_t SizeOf(cudaDataType type) {
  return type == CUDA_R_32F ? sizeof(float) : type == CUDA_R_8F_E4M3 ? 1 : sizeof(Bf16);
}

float Element(const void* data, cudaDataType type, uint64_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  if (type == CUDA_R_8F_E4M3) return FromE4m3(static_cast<const uint8_t*>(data)[at]);
  return ToFloat(static_cast<const Bf16*>(data)[at]);
}

// Scales by row and column of the result.
bool HasVectors(const Operation& operation) {
  return operation.mode_w == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
}

// What the library says of E4M3 factors: W transposed and nothing else; rows of all matrices whole pieces of 16 bytes; a
// capability of 8.9, and of 9.0 and no other for scales by row and column, of both factors.
bool TakesFp8(const Operation& operation, const Layout& w, const Layout& a, const Layout& out,
              const Preference& aligned) {
  constexpr uint64_t kPiece = 16;
  const auto whole = [](uint64_t elements, const Layout& of) {
    return elements * SizeOf(of.type) % kPiece == 0 && of.stride * SizeOf(of.type) % kPiece == 0;
  };
  const World& world = TheWorld();
  const int capability = world.capability_major * 10 + world.capability_minor;
  if (capability < 89 || w.type != a.type || operation.transposed_w != CUBLAS_OP_T ||
      operation.transposed_a != CUBLAS_OP_N) {
    return false;
  }
  if (out.type != CUDA_R_32F && out.type != CUDA_R_16BF) return false;
  if (!whole(w.rows, w) || !whole(a.rows, a) || !whole(out.rows, out)) return false;
  if (std::min({aligned.alignment_w, aligned.alignment_a, aligned.alignment_out}) < kPiece) return false;
  if (operation.mode_w != operation.mode_a) return false;
  if (operation.mode_w == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) {
    return operation.scale_w == nullptr && operation.scale_a == nullptr;  // ones, as ours are
  }
  return HasVectors(operation) && capability == 90 && operation.scale_w != nullptr &&
         operation.scale_a != nullptr;
}

// Columns of the matrix, each a run of floats, or rows of it.
std::vector<float> Runs(const void* data, const Layout& layout, bool rows) {
  std::vector<float> values(layout.rows * layout.cols);
  for (uint64_t c = 0; c < layout.cols; ++c) {
    for (uint64_t r = 0; r < layout.rows; ++r) {
      const uint64_t at = c * layout.stride + r;
      values[rows ? r * layout.cols + c : c * layout.rows + r] = Element(data, layout.type, at);
    }
  }
  return values;
}

// What a product sums over, and how many such runs a factor has. W's are its columns where it is transposed, a's where it is not.
uint64_t Depth(const Layout& layout, bool columns) { return columns ? layout.rows : layout.cols; }
uint64_t Count(const Layout& layout, bool columns) { return columns ? layout.cols : layout.rows; }

float Dot(const float* a, const float* b, uint64_t count) {
  constexpr int kSums = 16;
  float sums[kSums] = {};
  uint64_t k = 0;
  for (; k + kSums <= count; k += kSums) {
    for (int i = 0; i < kSums; ++i) sums[i] += a[k + i] * b[k + i];
  }
  float sum = 0.0f;
  for (; k < count; ++k) sum += a[k] * b[k];
  for (const float part : sums) sum += part;
  return sum;
}

// out^T [out, rows] = op(W) op(a), scaled, + bias (+ c^T, which is as out^T, or that).
void Multiply(const Operation& operation, const void* w, const Layout& w_layout, const void* a,
              const Layout& a_layout, const void* c, bool accumulate, void* out, const Layout& out_layout) {
  const bool w_columns = operation.transposed_w == CUBLAS_OP_T;
  const bool a_columns = operation.transposed_a == CUBLAS_OP_N;
  const std::vector<float> weights = Runs(w, w_layout, !w_columns), inputs = Runs(a, a_layout, !a_columns);
  const uint64_t depth = Depth(w_layout, w_columns);
  for (uint64_t row = 0; row < out_layout.cols; ++row) {
    for (uint64_t o = 0; o < out_layout.rows; ++o) {
      const uint64_t at = row * out_layout.stride + o;
      float sum = Dot(&weights[o * depth], &inputs[row * depth], depth);
      if (HasVectors(operation)) sum *= operation.scale_w[o] * operation.scale_a[row];
      if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS) sum += operation.bias[o];
      if (out_layout.type == CUDA_R_32F) {
        const float before = accumulate ? static_cast<const float*>(c)[at] : 0.0f;
        static_cast<float*>(out)[at] = before + sum;
      } else {
        const float before = accumulate ? ToFloat(static_cast<const Bf16*>(c)[at]) : 0.0f;
        static_cast<Bf16*>(out)[at] = ToBf16(before + sum);
      }
    }
  }
}

void CheckAligned(const void* data, uint32_t alignment, const char* what) {
  if (reinterpret_cast<uintptr_t>(data) % alignment != 0)
    Die(std::string(what) + " is not aligned as its plan was made for");
}

}  // namespace
}  // namespace aludel::cuda::fake

namespace aludel::cuda {
absl::Status LoadCublasLt() { return absl::OkStatus(); }
}  // namespace aludel::cuda

using namespace aludel::cuda::fake;  // NOLINT: this file is the library's

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int one;
  *handle = reinterpret_cast<cublasLtHandle_t>(&one);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "an error of the fake cuBLASLt"; }

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t operation, size_t,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  Put(operation, Operation{CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, nullptr,
                           CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t opaque,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t) {
  auto operation = Get<Operation>(opaque);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) operation.transposed_w = Get<cublasOperation_t>(value);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) operation.transposed_a = Get<cublasOperation_t>(value);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) operation.epilogue = Get<cublasLtEpilogue_t>(value);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) operation.bias = Get<const float*>(value);
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) operation.scale_w = Get<const float*>(value);
  if (attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) operation.scale_a = Get<const float*>(value);
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_MODE) operation.mode_w = Get<int32_t>(value);
  if (attribute == CUBLASLT_MATMUL_DESC_B_SCALE_MODE) operation.mode_a = Get<int32_t>(value);
  Put(opaque, operation);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t, cudaDataType type,
                                                 uint64_t rows, uint64_t cols, int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  Put(layout, Layout{type, rows, cols, stride});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference, size_t) {
  Put(preference, Preference{0, 256, 256, 256});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t opaque,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t) {
  auto preference = Get<Preference>(opaque);
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) preference.workspace = Get<size_t>(value);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) preference.alignment_w = Get<uint32_t>(value);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) preference.alignment_a = Get<uint32_t>(value);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)
    preference.alignment_out = Get<uint32_t>(value);
  Put(opaque, preference);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t opaque,
                                              cublasLtMatrixLayout_t w, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t out,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  const std::lock_guard lock(TheWorld().mutex);
  *found = 0;
  const auto operation = Get<Operation>(opaque);
  // As the library, which wants a bf16 result's bias in bf16.
  if (operation.epilogue == CUBLASLT_EPILOGUE_BIAS && Get<Layout>(out).type != CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto aligned = Get<Preference>(preference);
  const bool fp8 = Get<Layout>(w).type == CUDA_R_8F_E4M3 || Get<Layout>(a).type == CUDA_R_8F_E4M3;
  if (fp8 ? !TakesFp8(operation, Get<Layout>(w), Get<Layout>(a), Get<Layout>(out), aligned)
          : HasVectors(operation)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const uint32_t least = static_cast<uint32_t>(SizeOf(Get<Layout>(w).type)) == 2 ? 16 : 4;
  if (TheWorld().no_heuristic || wanted < 1 || aligned.alignment_w < least || aligned.alignment_a < least) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (const int offered = static_cast<int>(TheWorld().algorithms.size()); *found < std::min(wanted, offered);
       ++*found) {
    Put(&results[*found].algo, Algorithm{aligned, *found});
    results[*found].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const std::lock_guard lock(TheWorld().mutex);
  const auto chosen = Get<Algorithm>(algorithm);
  if (TheWorld().algorithms.at(chosen.place) < 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->state = CUBLAS_STATUS_SUCCESS;
  result->workspaceSize = chosen.plan.workspace;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t opaque, const void* alpha, const void* w,
                              cublasLtMatrixLayout_t w_opaque, const void* a, cublasLtMatrixLayout_t a_opaque,
                              const void* beta, const void* c, cublasLtMatrixLayout_t, void* out,
                              cublasLtMatrixLayout_t out_opaque, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const std::lock_guard lock(TheWorld().mutex);
  const auto operation = Get<Operation>(opaque);
  const auto chosen = Get<Algorithm>(algorithm);
  const Preference& plan = chosen.plan;
  const auto w_layout = Get<Layout>(w_opaque), a_layout = Get<Layout>(a_opaque),
             out_layout = Get<Layout>(out_opaque);
  const bool accumulate = Get<float>(beta) != 0.0f;
  if (Get<float>(alpha) != 1.0f || (c != out && !accumulate)) Die("a product of another kind");
  const bool w_columns = operation.transposed_w == CUBLAS_OP_T;
  const bool a_columns = operation.transposed_a == CUBLAS_OP_N;
  if (Depth(w_layout, w_columns) != Depth(a_layout, a_columns) ||
      Count(w_layout, w_columns) != out_layout.rows || Count(a_layout, a_columns) != out_layout.cols ||
      w_layout.type != a_layout.type) {
    Die("a product of matrices that do not fit");
  }
  if (workspace_bytes < plan.workspace || !IsDeviceRange(workspace, workspace_bytes, "a workspace")) {
    Die("a workspace that is not the device's, or smaller than its plan");
  }
  CheckAligned(w, plan.alignment_w, "W");
  CheckAligned(a, plan.alignment_a, "a");
  CheckAligned(out, plan.alignment_out, "out");
  const auto check = [](const void* data, const Layout& layout, const char* what) {
    if (!IsDeviceRange(data, ((layout.cols - 1) * layout.stride + layout.rows) * SizeOf(layout.type), what)) {
      Die(std::string(what) + " of a product is not the device's");
    }
  };
  check(w, w_layout, "W");
  check(a, a_layout, "a");
  check(c, out_layout, "c");
  check(out, out_layout, "out");
  if (w_layout.type == CUDA_R_8F_E4M3 && !TakesFp8(operation, w_layout, a_layout, out_layout, plan))
    Die("a product of E4M3 matrices that cuBLASLt does not make");
  if (HasVectors(operation) &&
      (!IsDeviceRange(operation.scale_w, w_layout.cols * sizeof(float), "scales of W") ||
       !IsDeviceRange(operation.scale_a, a_layout.cols * sizeof(float), "scales of a"))) {
    Die("scales of a product are not the device's");
  }
  const double microseconds = TheWorld().algorithms.at(chosen.place);
  if (microseconds < 0) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (TheWorld().sticky != cudaSuccess || CountLaunch("cublasLtMatmul") != cudaSuccess)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  Enqueue(stream,
          {"cublasLtMatmul",
           [=] {
             const auto bytes = [](const Layout& of) {
               return static_cast<int64_t>(of.rows * of.cols * SizeOf(of.type));
             };
             const auto scales = static_cast<int64_t>(
                 HasVectors(operation) ? (w_layout.cols + a_layout.cols) * sizeof(float) : 0);
             AddCost("cublasLtMatmul",
                     {bytes(w_layout) + bytes(a_layout) + scales + bytes(out_layout) * (accumulate ? 2 : 1),
                      static_cast<int64_t>(2 * w_layout.rows * w_layout.cols * out_layout.cols)});
             ++TheWorld().counts.algorithms[chosen.place];
             TheWorld().clock_us += microseconds;
             if (TheWorld().count_only) return;
             // Its scratch holds anything afterwards.
             std::memset(workspace, 0xff, 4096);
             Multiply(operation, w, w_layout, a, a_layout, c, accumulate, out, out_layout);
           },
           nullptr, nullptr});
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
