#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gemm/adapted_launch.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/packed_low_rank.h"
#include "kernels/cuda/gemm/slice_updates.h"

namespace aludel::cuda {

std::optional<AddedArgs> SliceUpdates(absl::Span<const StackedUpdates> stack, int64_t rows, int64_t in,
                                      const CudaStream& stream) {
  std::vector<AddedSlice> slices;
  int64_t out_begin = 0;
  for (const StackedUpdates& updates : stack) {
    for (const LowRankRows& group : updates.groups) {
      const auto& packed = static_cast<const CudaLowRank&>(*group.update);
      ALUDEL_CHECK(packed.in_features() == in && packed.out_features() == updates.outputs);
      ALUDEL_CHECK(packed.dtype() == DType::kBf16);
      for (size_t s = 0; s < packed.spans().size(); ++s) {
        const LowRankSpan& span = packed.spans()[s];
        const AddedSlice slice{static_cast<const Bf16*>(packed.update().a) + span.rank_begin * in,
                               static_cast<const Bf16*>(packed.update().b) + span.b,
                               packed.scales()[s],
                               span.rank,
                               static_cast<int32_t>(out_begin + span.out_begin),
                               static_cast<int32_t>(span.outputs),
                               /*row=*/0,
                               /*first_sum=*/0};
        for (const int32_t row : group.rows) {
          ALUDEL_CHECK(row >= 0 && row < rows);
          slices.push_back(slice);
          slices.back().row = row;
        }
      }
    }
    out_begin += updates.outputs;
  }
  if (slices.size() > kMostSlices) return std::nullopt;
  std::stable_sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) { return a.row < b.row; });
  AddedArgs args{};
  args.sums = static_cast<float*>(stream.workspace());
  args.counters = stream.counters();
  for (size_t s = 0; s < slices.size(); ++s) {
    slices[s].first_sum = args.sum_count;
    args.slices[s] = slices[s];
    args.sum_count += slices[s].rank;
    args.first_slice[slices[s].row + 1] = static_cast<int32_t>(s + 1);
  }
  for (int row = 0; row < kFusedRows; ++row) {
    args.first_slice[row + 1] = std::max(args.first_slice[row], args.first_slice[row + 1]);
  }
  ALUDEL_CHECK(args.sum_count * sizeof(float) <= CudaStream::kWorkspaceBytes);
  return args;
}

void CudaOps::GemmLowRank(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
                          absl::Span<const LowRankRows> groups, const TensorView& out, Stream stream) {
  CudaStream& state = Enter(stream);
  std::optional<AddedArgs> added;
  if (w.format() == WeightFormat::kBf16 && a.rows <= kFusedRows && ReadsPieces(a)) {
    added = SliceUpdates({{groups, out.cols}}, a.rows, a.cols, state);
  }
  if (!added.has_value() || added->sum_count == 0) {
    Gemm(a, w, bias, accumulate, out, stream);
    return AddLowRank(a, groups, out, stream);
  }
  ALUDEL_CHECK(a.cols == w.in_features() && out.cols == w.out_features() && a.rows == out.rows);
  const auto& packed = static_cast<const CudaPackedMatrix&>(w);
  const SkinnyArgs args{packed.data(), nullptr, a.data, nullptr, a.stride, a.cols, bias, accumulate, out};
  state.Launch("launch AdaptedGemm", LaunchAdaptedGemm, args, *added,
               SkinnyBlocks(kFusedRows, multiprocessors_), state.dependent_launch());
}

}  // namespace aludel::cuda
