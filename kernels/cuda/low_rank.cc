#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_ops.h"

namespace aludel::cuda {

absl::StatusOr<std::unique_ptr<PackedLowRank>> CudaOps::PackLowRank(absl::Span<const LowRankPart>, int64_t,
                                                                    int64_t, DType) {
  return absl::UnimplementedError(
      absl::StrCat(device_->name(),
                   ": adapters are served beside their base on the CPU alone; here an adapter is "
                   "merged into its base when that is loaded (engine.adapter)"));
}

void CudaOps::AddLowRank(const TensorView&, absl::Span<const LowRankRows> groups, const TensorView&, Stream) {
  ALUDEL_CHECK(groups.empty());  // PackLowRank makes none
}

}  // namespace aludel::cuda
