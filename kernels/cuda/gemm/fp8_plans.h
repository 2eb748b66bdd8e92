#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm/plan_cache.h"
#include "kernels/tensor.h"

namespace aludel::cuda {

// out [rows, outs] (+)= codes of `a` [rows, in] times those of W [outs, in], both E4M3 as fp8_index.h has them; times
// a_scales [rows] and w_scales [outs] where they are given. `in` is whole pieces of 16, and codes are
// aligned to one. Device memory.
struct Fp8Operands {
  const uint8_t* a = nullptr;
  const uint8_t* w = nullptr;
  int64_t in = 0;
  const float* a_scales = nullptr;  // both or neither
  const float* w_scales = nullptr;
  bool accumulate = false;
  TensorView out;
};

// cuBLASLt's products of E4M3 matrices, whose algorithms PlanCache chooses. Sums are f32 (without
// CUBLASLT_MATMUL_DESC_FAST_ACCUM, which keeps fewer bits between). Scales by row and column are a mode of the library's from
// 12.9 on that compute capability 9.0 has; elsewhere a product without them is what it finds. Thread-safe.
class Fp8Plans {
 public:
  static absl::StatusOr<std::unique_ptr<Fp8Plans>> Create(const std::string& device_name,
                                                          bool time_algorithms);
  ~Fp8Plans();
  Fp8Plans(const Fp8Plans&) = delete;
  Fp8Plans& operator=(const Fp8Plans&) = delete;

  // Nothing where cuBLASLt has no algorithm. Where its algorithms are timed for this product, on `stream`, `out` may be written
  // without `accumulate`, and the stream's workspace is.
  std::optional<LtPlan> Find(const Fp8Operands& product, CudaStream& stream);
  // Into out's memory, or into other that is as large: `to` = out + ... then. `workspace`: CudaStream::kWorkspaceBytes.
  absl::Status Run(LtPlan plan, const Fp8Operands& product, void* to, void* workspace,
                   cudaStream_t stream) const;

 private:
  // Everything that chooses an algorithm.
  using Key = std::tuple<int64_t /*rows*/, int64_t /*outs*/, int64_t /*in*/, int64_t /*out stride*/,
                         DType /*out*/, bool /*accumulate*/, bool /*scaled*/, uint32_t /*align w*/,
                         uint32_t /*align a*/, uint32_t /*align out*/>;

  Fp8Plans(cublasLtHandle_t handle, bool time_algorithms)
      : handle_(handle), plans_(handle, time_algorithms) {}

  // Of a product but for its algorithm. Nothing where cuBLASLt does not make such.
  static std::optional<LtPlan> Describe(const Fp8Operands& product);

  cublasLtHandle_t handle_;
  PlanCache<Key> plans_;
};

}  // namespace aludel::cuda
