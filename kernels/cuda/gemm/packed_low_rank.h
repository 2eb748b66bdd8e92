#pragma once

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cuda/gemm/pack_low_rank.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace aludel::cuda {

// Updates in device memory, as LowRankLayout says.
class CudaLowRank final : public PackedLowRank {
 public:
  CudaLowRank(Buffer memory, int64_t out, const LowRankLayout& layout, absl::Span<const LowRankPart> parts)
      : memory_(std::move(memory)),
        out_(out),
        in_(layout.in),
        dtype_(layout.dtype),
        update_(layout.At(memory_.as<char>())),
        spans_(layout.spans) {
    for (const LowRankPart& part : parts) scales_.push_back(part.scale);
  }

  int64_t out_features() const override { return out_; }
  int64_t in_features() const override { return in_; }
  size_t bytes() const override { return memory_.size(); }

  DType dtype() const { return dtype_; }
  const LowRankUpdate& update() const { return update_; }
  // The update's own, for the host, and the scale of each.
  absl::Span<const LowRankSpan> spans() const { return spans_; }
  absl::Span<const float> scales() const { return scales_; }

 private:
  const Buffer memory_;
  const int64_t out_, in_;
  const DType dtype_;
  const LowRankUpdate update_;
  const std::vector<LowRankSpan> spans_;
  std::vector<float> scales_;
};

// That each group's update takes rows of x to rows of `out`, and that those are there.
inline void CheckLowRank(const TensorView& x, absl::Span<const LowRankRows> groups, const TensorView& out) {
  for (const LowRankRows& group : groups) {
    const auto& packed = static_cast<const CudaLowRank&>(*group.update);
    ALUDEL_CHECK(x.cols == packed.in_features() && out.cols == packed.out_features());
    ALUDEL_CHECK(x.dtype == packed.dtype() && (x.dtype == DType::kBf16 || out.dtype == DType::kF32));
    for (const int32_t row : group.rows) ALUDEL_CHECK(row >= 0 && row < x.rows && row < out.rows);
  }
}

}  // namespace aludel::cuda
