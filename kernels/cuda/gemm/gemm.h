#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm/plan_cache.h"
#include "kernels/cuda/gemm/skinny_index.h"
#include "kernels/device.h"
#include "kernels/device_options.h"
#include "kernels/ops.h"
#include "kernels/training_ops.h"

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

// Whether our own kernels can load 16 bytes of a row at once. W needs no look: its rows are as long as those of `a`, and it
// begins where an allocation does.
inline bool ReadsPieces(const TensorView& a) {
  constexpr int64_t kPiece = 16 / sizeof(Bf16);
  return a.dtype == DType::kBf16 && a.cols % kPiece == 0 && a.stride % kPiece == 0 &&
         reinterpret_cast<uintptr_t>(a.data) % 16 == 0;
}

// Projections, by rows of `a`; our own kernels read the weights once and as they are stored.
//   bf16 in whole, aligned pieces of 16 bytes   up to 8 skinny_gemm.cuh, up to 64 batch_gemm.cuh (batch_gemm off: 16, none)
//   weights with scales                         up to 64 skinny_gemm.cuh, 16 rows at a time
//   all others                                  cuBLASLt, weights with scales as numbers, a piece of the matrix at a time
// So what a row gives may differ in its last bits between up to 8 rows, 9 to 64 and more; among 9 to 64 it is the same bits
// whatever other rows there are.
//
// A product that cuBLASLt has no algorithm for is reported (ReportSlowProduct) and made by batch_gemm.cuh, 64 rows at a time, where it is
// of bf16 in whole, aligned pieces. The others are tile_gemm.cuh's, which uses no tensor cores: f32, of models that compute in
// it, and rows of bf16 that loads of 16 bytes do not read, of models whose widths are no multiples of 8.
//
// cuBLASLt's algorithm is chosen by PlanCache. Of a large product it is the fastest of those that cuBLASLt offers, timed on the stream
// when a class of rows is first met (a server's warm-up meets all that its steps have), and then kept for the life of the device. It
// is cuBLASLt's first where it is first met in a graph's capture, and of small products. Thread-safe; the workspace is the stream's.
class GemmEngine {
 public:
  // Of `options` batch_gemm and time_algorithms.
  static absl::StatusOr<std::unique_ptr<GemmEngine>> Create(const std::string& device_name,
                                                            int multiprocessors,
                                                            const DeviceOptions& options);
  ~GemmEngine();
  GemmEngine(const GemmEngine&) = delete;
  GemmEngine& operator=(const GemmEngine&) = delete;

  // out (+)= a W^T + bias; shapes have been checked, a.rows > 0. Failures are collected in the stream.
  void Run(const TensorView& a, const CudaPackedMatrix& w, const float* bias, bool accumulate,
           const TensorView& out, CudaStream& stream);

  // TrainingOps::Multiply. Unimplemented where cuBLASLt makes no such product.
  absl::Status MultiplyFree(const TrainingOps::Factor& a, const TrainingOps::Factor& b, bool accumulate,
                            const TensorView& out, CudaStream& stream);

 private:
  // Everything that chooses an algorithm: all but the addresses, of which only the alignment counts.
  using Key = std::tuple<int64_t /*rows*/, int64_t /*out*/, int64_t /*in*/, int64_t /*a stride*/,
                         int64_t /*out stride*/, DType /*a*/, DType /*out*/, bool /*accumulate*/,
                         uint32_t /*align a*/, uint32_t /*align w*/, uint32_t /*align out*/,
                         uint32_t /*align bias, 0: none*/>;
  // Of weights with scales, 16 at a time: 64 read 4.3 bytes for an int8 weight and 2.3 for an int4 one. As numbers it is 5.1 and 4.6,
  // read, written and read again, whatever the rows.
  static constexpr int64_t kScaledRows = 64;
  static constexpr size_t kMostReported = 1024;

  GemmEngine(cublasLtHandle_t handle, int multiprocessors, const DeviceOptions& options)
      : handle_(handle),
        multiprocessors_(multiprocessors),
        batch_gemm_(options.batch_gemm),
        plans_(handle, options.time_algorithms) {}

  // Whether batch_gemm.cuh multiplies such rows, kBatchRows of them at a time.
  static bool TakesBatches(const TensorView& a, const TensorView& out);
  // By it, at most kBatchRows rows of what it takes; W [out.cols, a.cols].
  void MultiplyBatch(const TensorView& a, const void* w, const float* bias, bool accumulate,
                     const TensorView& out, CudaStream& stream) const;
  // What cuBLASLt has no algorithm for: by tensor cores where they can load the rows, W once for every kBatchRows of them; f32, and
  // rows of bf16 that are no whole, aligned pieces, by tile_gemm.cuh.
  void MultiplyWithoutLibrary(const TensorView& a, const void* w, const float* bias, bool accumulate,
                              const TensorView& out, CudaStream& stream);

  // W [out.cols, a.cols] row-major, in a's type.
  void Multiply(const TensorView& a, const void* w, const float* bias, bool accumulate, const TensorView& out,
                CudaStream& stream);
  // As above where cuBLASLt cannot add the bias: bf16 results.
  void MultiplyRoundingOnce(const TensorView& a, const void* w, const float* bias, const TensorView& out,
                            CudaStream& stream);
  void MultiplyScaled(const TensorView& a, const CudaPackedMatrix& w, const float* bias, bool accumulate,
                      const TensorView& out, CudaStream& stream);
  // At most kSkinnyRows.
  void MultiplyFewScaled(const TensorView& a, const CudaPackedMatrix& w, const float* bias, bool accumulate,
                         const TensorView& out, CudaStream& stream);

  // out (+)= ..., or, where `to` is another memory of its shape, to = out + ...
  absl::Status RunPlan(LtPlan plan, const TensorView& a, const void* w, const float* bias, bool accumulate,
                       const TensorView& out, void* to, void* workspace, cudaStream_t stream) const;

  // Of a product but for its algorithm. Nothing where cuBLASLt does not make such.
  static std::optional<LtPlan> Describe(const Key& key, const float* bias);
  // Of a product that the library does not make: logged and counted, once for each shape, in all at most kMostReported.
  void ReportSlow(const Key& key);

  cublasLtHandle_t handle_;
  const int multiprocessors_;
  const bool batch_gemm_;
  PlanCache<Key> plans_;
  std::mutex mutex_;
  std::set<Key> reported_;  // guarded by mutex_
};

}  // namespace aludel::cuda
