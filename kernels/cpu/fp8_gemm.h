#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/thread_team.h"
#include "kernels/cpu/vector/micro_kernels.h"
#include "kernels/ops.h"

// Products of E4M3 weights, for what a GPU's lose to be measured without one: rows are rounded as there, and factors and
// sums are f32. Slow where there are few rows, as every product unpacks the weights.
namespace aludel::cpu {

// Codes [out, in], then scales [out].
class CpuFp8Matrix final : public PackedMatrix {
 public:
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Create(int64_t out, int64_t in);

  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  WeightFormat format() const override { return WeightFormat::kFp8; }
  int64_t row_block() const override { return 1; }

  uint8_t* row(int64_t row) const { return static_cast<uint8_t*>(codes_.get()) + row * in_; }
  float* scales() const { return static_cast<float*>(scales_.get()); }

 private:
  CpuFp8Matrix(HostMemory codes, HostMemory scales, int64_t out, int64_t in)
      : codes_(std::move(codes)), scales_(std::move(scales)), out_(out), in_(in) {}

  HostMemory codes_;
  HostMemory scales_;
  int64_t out_;
  int64_t in_;
};

// x [count] as E4M3 codes; returns their scale, as e4m3_scale.h says.
float QuantizeToE4m3(const float* x, int64_t count, uint8_t* codes);

// Rows of numbers, or of codes, into `w` from row_begin on.
void PackFp8(const TensorView& host_rows, int64_t row_begin, const CpuFp8Matrix& w);
void PackFp8(const Fp8Rows& host_rows, int64_t row_begin, const CpuFp8Matrix& w);

// Ops::Gemm. What a row gives depends neither on other rows nor on threads.
void MultiplyFp8(const MicroKernels& kernels, ThreadTeam& team, const TensorView& a, const CpuFp8Matrix& w,
                 const float* bias, bool accumulate, const TensorView& out);

}  // namespace aludel::cpu
