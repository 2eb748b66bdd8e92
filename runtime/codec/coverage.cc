#include "runtime/codec/coverage.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace aludel {

FrameCoverage SliceCoverage(const LayerSlice& slice) {
  return {static_cast<uint16_t>(slice.layer), 1, 0, static_cast<uint32_t>(slice.token_begin),
          static_cast<uint32_t>(slice.tokens())};
}

std::optional<LayerSlice> ClipSlice(const LayerSlice& slice, int64_t begin, int64_t end) {
  const int64_t first = std::max(begin, slice.token_begin);
  const int64_t count = std::min(end, slice.token_begin + slice.tokens()) - first;
  if (count <= 0) return std::nullopt;
  const int64_t skip = first - slice.token_begin;
  LayerSlice part = slice;
  part.token_begin = first;
  part.row += skip;
  for (TensorView* view : {&part.h, &part.k, &part.v, &part.x, &part.q}) {
    if (view->data != nullptr) *view = view->Rows(skip, count);
  }
  return part;
}

absl::Status CheckLayerFrame(const FrameCoverage& coverage, int layers, const KvTarget& target) {
  if (coverage.layers != 1 || coverage.plane != 0) {
    return absl::DataLossError(absl::StrFormat("frame holds %d layers of plane %d, want 1 layer of plane 0",
                                               coverage.layers, coverage.plane));
  }
  if (coverage.first_layer >= layers) {
    return absl::DataLossError(
        absl::StrFormat("frame is of layer %d, the model has %d", coverage.first_layer, layers));
  }
  const int64_t end = int64_t{coverage.token_begin} + coverage.tokens;
  const auto room = static_cast<int64_t>(target.blocks.size()) * target.pool->layout().block_tokens;
  if (coverage.tokens == 0 || coverage.token_begin < target.begin || end > target.tokens || end > room) {
    return absl::DataLossError(
        absl::StrFormat("frame of layer %d holds tokens [%d, %d), the handoff has [%d, %d) and blocks for %d",
                        coverage.first_layer, coverage.token_begin, end, target.begin, target.tokens, room));
  }
  return absl::OkStatus();
}

}  // namespace aludel
