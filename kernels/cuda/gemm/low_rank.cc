#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm/packed_low_rank.h"
#include "kernels/cuda/sequence_table.h"

namespace aludel::cuda {
namespace {

// Of a launch: what its table takes of the stream's ring, and its sums of the workspace.
constexpr size_t kMostTiles = 4096;
constexpr int64_t kMostSums = CudaStream::kWorkspaceBytes / sizeof(float);
constexpr int64_t kMostBlocksY = 65535;

}  // namespace

absl::StatusOr<std::unique_ptr<PackedLowRank>> CudaOps::PackLowRank(absl::Span<const LowRankPart> parts,
                                                                    int64_t out, int64_t in, DType dtype) {
  for (const LowRankPart& part : parts) {
    ALUDEL_CHECK(part.a.cols == in && part.b.cols == part.a.rows && part.a.rows > 0);
    ALUDEL_CHECK(part.out_begin >= 0 && part.out_begin + part.b.rows <= out);
  }
  const LowRankLayout layout = LayOutLowRank(parts, in, dtype);
  if (layout.rank > kMostBlocksY * kLowRankRanks || layout.out_tiles > kMostBlocksY ||
      layout.rank * kLowRankRows > kMostSums) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: updates of rank %d of a %d x %d matrix, which are more than a launch takes: at most rank %d, "
        "and %d outputs",
        device_->name(), layout.rank, out, in,
        std::min(kMostBlocksY * kLowRankRanks, kMostSums / kLowRankRows), kMostBlocksY * kLowRankOuts));
  }
  absl::StatusOr<Buffer> memory = device_->Allocate(layout.bytes);
  if (!memory.ok()) return memory.status();
  const std::vector<char> bytes = PackedLowRankBytes(layout, parts);
  cudaError_t error = cudaSetDevice(ordinal_);
  if (error == cudaSuccess) {
    error = cudaMemcpy(memory->data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice);
  }
  // As in PackRows: the copy may return before it has been made.
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
  if (error != cudaSuccess) {
    return FromCuda(error, absl::StrFormat("%s: copy updates of rank %d of a %d x %d matrix", device_->name(),
                                           layout.rank, out, in));
  }
  return std::make_unique<CudaLowRank>(*std::move(memory), out, layout, parts);
}

void CudaOps::AddLowRank(const TensorView& x, absl::Span<const LowRankRows> groups, const TensorView& out,
                         Stream stream) {
  CheckLowRank(x, groups, out);
  std::vector<LowRankPiece> pieces;
  for (const LowRankRows& group : groups) {
    const auto& packed = static_cast<const CudaLowRank&>(*group.update);
    PlanLowRank(packed.update(), group.rows, kMostTiles, kMostSums, &pieces);
  }
  if (pieces.empty()) return;
  CudaStream& state = Enter(stream);
  for (const LowRankPiece& piece : pieces) {
    const LowRankTile* const tiles = StageSpan(absl::MakeConstSpan(piece.tiles), state);
    if (tiles == nullptr) return;
    const LowRankArgs args{
        tiles, static_cast<int32_t>(piece.tiles.size()), piece.most_rank(), piece.most_out_tiles(), x,
        out,   static_cast<float*>(state.workspace())};
    state.Launch("launch Shrink", LaunchShrink, args);
    state.Launch("launch Expand", LaunchExpand, args);
  }
}

}  // namespace aludel::cuda
