#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm/fp8_index.h"
#include "kernels/cuda/gemm/fp8_plans.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace aludel::cuda {

// W [out, in] as E4M3 codes in device memory, see fp8_index.h, and behind them their scales.
class CudaFp8Matrix final : public PackedMatrix {
 public:
  CudaFp8Matrix(Buffer memory, int64_t out, int64_t in) : memory_(std::move(memory)), out_(out), in_(in) {}

  static size_t CodeBytes(int64_t out, int64_t in) { return Fp8Padded(out) * Fp8Padded(in); }
  static size_t Bytes(int64_t out, int64_t in) { return CodeBytes(out, in) + Fp8Padded(out) * sizeof(float); }

  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  WeightFormat format() const override { return WeightFormat::kFp8; }
  int64_t row_block() const override { return 1; }
  uint8_t* row(int64_t row) const { return memory_.as<uint8_t>() + row * Fp8Padded(in_); }
  float* scales() const { return reinterpret_cast<float*>(memory_.as<uint8_t>() + CodeBytes(out_, in_)); }

 private:
  Buffer memory_;
  int64_t out_;
  int64_t in_;
};

// Products of such matrices. Up to kSkinnyRows rows are multiplied as bf16 by our own kernel, which reads the codes once. More are
// rounded to E4M3 with a scale for each and go through cuBLASLt, batches of 17 to 64 among them: it reads the codes once there,
// too, where our kernel would once for each 16 rows. Where cuBLASLt has no scales by row and column, or there is a bias (which
// it would want in bf16), it adds up codes, and a kernel of ours does the rest. Thread-safe; memory beside is the stream's.
class Fp8Gemm {
 public:
  static absl::StatusOr<std::unique_ptr<Fp8Gemm>> Create(const std::string& device_name, int ordinal,
                                                         bool time_algorithms);

  // Unimplemented, with what this GPU has and what it takes, below compute capability 8.9.
  absl::Status Supported() const;
  absl::StatusOr<std::unique_ptr<PackedMatrix>> NewPacked(Device* device, int64_t out, int64_t in) const;

  // out (+)= a W^T + bias; shapes have been checked, a.rows > 0. Failures are collected in the stream.
  void Run(const TensorView& a, const CudaFp8Matrix& w, const float* bias, bool accumulate,
           const TensorView& out, CudaStream& stream);

 private:
  Fp8Gemm(std::string device_name, int capability, std::unique_ptr<Fp8Plans> plans)
      : device_name_(std::move(device_name)), capability_(capability), plans_(std::move(plans)) {}

  // At most kSkinnyRows rows.
  void MultiplyFew(const TensorView& a, const CudaFp8Matrix& w, const float* bias, bool accumulate,
                   const TensorView& out, CudaStream& stream) const;
  // Of rows whose codes are at `codes` with their scales.
  void MultiplyCodes(const TensorView& a, const uint8_t* codes, const float* scales, const CudaFp8Matrix& w,
                     const float* bias, bool accumulate, const TensorView& out, CudaStream& stream);
  // As above by sums of codes; false where cuBLASLt has no algorithm for those.
  bool MultiplyBySums(const uint8_t* codes, const float* scales, const CudaFp8Matrix& w, const float* bias,
                      bool accumulate, const TensorView& out, CudaStream& stream);
  // Where neither can be done; once for each shape.
  void Report(const TensorView& a, const TensorView& out);
  void Multiply(const LtPlan& plan, const Fp8Operands& product, CudaStream& stream) const;

  const std::string device_name_;
  const int capability_;  // 89 for 8.9
  const std::unique_ptr<Fp8Plans> plans_;
  std::mutex mutex_;
  std::set<std::tuple<int64_t, int64_t, int64_t, DType>> reported_;  // slow shapes, guarded by mutex_
};

}  // namespace aludel::cuda
