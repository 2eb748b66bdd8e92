#include "kernels/cuda/gemm/cublas_lt_loader.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace {

constexpr char kLibrary[] = "libcublasLt.so." CUBLAS_VER_MAJOR_TEXT;

struct Library {
  Library() {
    // Where the loader looks, then where the toolkit was when this was built.
    for (const char* path : {kLibrary, ALUDEL_CUBLASLT_PATH}) {
      handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) return;
      const char* reason = dlerror();
      if (error.empty()) error = reason == nullptr ? "no reason given" : reason;
    }
  }
  void* handle = nullptr;  // stays for the life of the process
  std::string error;
};

const Library& TheLibrary() {
  static const Library library;
  return library;
}

void* Symbol(const char* name) {
  void* handle = TheLibrary().handle;
  return handle == nullptr ? nullptr : dlsym(handle, name);
}

}  // namespace

// The functions of cublasLt.h that gemm.cc, fp8_plans.cc, lt_plan.cc and training_ops.cc call, directly or through the header's inline ones: each finds
// the real one once and passes its arguments on.
#define ALUDEL_FORWARD(name, parameters, arguments)                                  \
  extern "C" cublasStatus_t CUBLASWINAPI name parameters {                           \
    static const auto function = reinterpret_cast<decltype(&name)>(Symbol(#name));   \
    return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function arguments; \
  }

ALUDEL_FORWARD(cublasLtCreate, (cublasLtHandle_t * handle), (handle))
ALUDEL_FORWARD(cublasLtDestroy, (cublasLtHandle_t handle), (handle))
ALUDEL_FORWARD(cublasLtMatmulDescInit_internal,
               (cublasLtMatmulDesc_t operation, size_t size, cublasComputeType_t compute,
                cudaDataType_t scale),
               (operation, size, compute, scale))
ALUDEL_FORWARD(cublasLtMatmulDescSetAttribute,
               (cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const void* value,
                size_t size),
               (operation, attribute, value, size))
ALUDEL_FORWARD(cublasLtMatrixLayoutInit_internal,
               (cublasLtMatrixLayout_t layout, size_t size, cudaDataType type, uint64_t rows, uint64_t cols,
                int64_t stride),
               (layout, size, type, rows, cols, stride))
ALUDEL_FORWARD(cublasLtMatmulPreferenceInit_internal, (cublasLtMatmulPreference_t preference, size_t size),
               (preference, size))
ALUDEL_FORWARD(cublasLtMatmulPreferenceSetAttribute,
               (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                const void* value, size_t size),
               (preference, attribute, value, size))
ALUDEL_FORWARD(cublasLtMatmulAlgoGetHeuristic,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t results[],
                int* found),
               (handle, operation, a, b, c, d, preference, wanted, results, found))
ALUDEL_FORWARD(cublasLtMatmulAlgoCheck,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result),
               (handle, operation, a, b, c, d, algorithm, result))
ALUDEL_FORWARD(cublasLtMatmul,
               (cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                size_t workspace_bytes, cudaStream_t stream),
               (handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
                workspace, workspace_bytes, stream))

extern "C" const char* CUBLASWINAPI cublasLtGetStatusString(cublasStatus_t status) {
  static const auto function =
      reinterpret_cast<decltype(&cublasLtGetStatusString)>(Symbol("cublasLtGetStatusString"));
  return function == nullptr ? "cuBLASLt is not loaded" : function(status);
}

namespace aludel::cuda {

absl::Status LoadCublasLt() {
  if (TheLibrary().handle != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("cuBLASLt cannot be loaded (", TheLibrary().error,
                   "): install the CUDA Toolkit's cuBLAS, or name its folder in LD_LIBRARY_PATH"));
}

}  // namespace aludel::cuda
