#pragma once

#include <cublasLt.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm/skinny_index.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace aludel::cuda {

// W [out, in] in device memory: row-major as cuBLASLt reads it, or with scales as skinny_index.h says, first
// all rows, then all scales.
class CudaPackedMatrix final : public PackedMatrix {
 public:
  CudaPackedMatrix(Buffer memory, int64_t out, int64_t in, WeightFormat format)
      : memory_(std::move(memory)), out_(out), in_(in), format_(format) {}

  static size_t RowBytes(int64_t in, WeightFormat format) {
    if (HasScales(format)) return ScaledRowBytes(in, format);
    return in * (format == WeightFormat::kF32 ? sizeof(float) : sizeof(Bf16));
  }
  static int64_t ScalesPerRow(int64_t in, WeightFormat format) {
    return HasScales(format) ? RunsOf(in) * kRunGroups : 0;
  }
  static size_t Bytes(int64_t out, int64_t in, WeightFormat format) {
    return out * (RowBytes(in, format) + ScalesPerRow(in, format) * sizeof(Bf16));
  }

  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  WeightFormat format() const override { return format_; }
  int64_t row_block() const override { return 1; }
  // Of a matrix without scales.
  DType dtype() const { return format_ == WeightFormat::kF32 ? DType::kF32 : DType::kBf16; }
  const void* data() const { return memory_.data(); }
  // Of a matrix without scales.
  TensorView rows() const {
    ALUDEL_CHECK(!HasScales(format_));
    return {memory_.data(), dtype(), out_, in_, in_};
  }
  char* row(int64_t row) const { return memory_.as<char>() + row * RowBytes(in_, format_); }
  Bf16* scales(int64_t row) const {
    return reinterpret_cast<Bf16*>(this->row(out_)) + row * ScalesPerRow(in_, format_);
  }

 private:
  Buffer memory_;
  int64_t out_;
  int64_t in_;
  WeightFormat format_;
};

// Projections: of few rows through our own kernel, which reads the weights once and as they are stored, of
// more through cuBLASLt, with the algorithm of its heuristic remembered per shape; weights with scales become
// numbers for it, a piece of the matrix at a time. Thread-safe; the workspace is the stream's.
class GemmEngine {
 public:
  static absl::StatusOr<std::unique_ptr<GemmEngine>> Create(const std::string& device_name,
                                                            int multiprocessors);
  ~GemmEngine();
  GemmEngine(const GemmEngine&) = delete;
  GemmEngine& operator=(const GemmEngine&) = delete;

  // out (+)= a W^T + bias; shapes have been checked, a.rows > 0. Failures are collected in the stream.
  void Run(const TensorView& a, const CudaPackedMatrix& w, const float* bias, bool accumulate,
           const TensorView& out, CudaStream& stream);

 private:
  // Everything that chooses an algorithm: all but the addresses, of which only the alignment counts.
  using Key = std::tuple<int64_t /*rows*/, int64_t /*out*/, int64_t /*in*/, int64_t /*a stride*/,
                         int64_t /*out stride*/, DType /*a*/, DType /*out*/, bool /*accumulate*/,
                         uint32_t /*align a*/, uint32_t /*align w*/, uint32_t /*align out*/,
                         uint32_t /*align bias, 0: none*/>;
  // Plain values of cuBLASLt: copied out under the lock, so that a plan may be evicted while it is used.
  struct Plan {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t w, a, out;
    cublasLtMatmulAlgo_t algorithm;
  };
  // Shapes come from step sizes, which the transformer rounds.
  static constexpr size_t kMaxPlans = 1024;

  GemmEngine(cublasLtHandle_t handle, int multiprocessors)
      : handle_(handle), multiprocessors_(multiprocessors) {}

  // W [out.cols, a.cols] row-major, in a's type.
  void Multiply(const TensorView& a, const void* w, const float* bias, bool accumulate, const TensorView& out,
                CudaStream& stream);
  // As above where cuBLASLt cannot add the bias: bf16 results.
  void MultiplyRoundingOnce(const TensorView& a, const void* w, const float* bias, const TensorView& out,
                            CudaStream& stream);
  void MultiplyScaled(const TensorView& a, const CudaPackedMatrix& w, const float* bias, bool accumulate,
                      const TensorView& out, CudaStream& stream);

  absl::Status RunPlan(Plan plan, const TensorView& a, const void* w, const float* bias, bool accumulate,
                       const TensorView& out, void* workspace, cudaStream_t stream) const;

  // Nothing where cuBLASLt has no algorithm for the shape; that is remembered too.
  std::optional<Plan> PlanFor(const Key& key, const float* bias);
  std::optional<Plan> MakePlan(const Key& key, const float* bias) const;

  cublasLtHandle_t handle_;
  const int multiprocessors_;
  std::mutex mutex_;
  std::map<Key, std::optional<Plan>> plans_;  // guarded by mutex_
  std::set<Key> reported_;                    // slow shapes, guarded by mutex_
};

}  // namespace aludel::cuda
