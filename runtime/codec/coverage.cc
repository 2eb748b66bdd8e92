#include "runtime/codec/coverage.h"

#include "absl/strings/str_format.h"

namespace aludel {

FrameCoverage SliceCoverage(const LayerSlice& slice) {
  return {static_cast<uint16_t>(slice.layer), 1, 0, static_cast<uint32_t>(slice.token_begin),
          static_cast<uint32_t>(slice.tokens())};
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
  if (coverage.tokens == 0 || end > target.tokens || end > room) {
    return absl::DataLossError(
        absl::StrFormat("frame of layer %d holds tokens [%d, %d), the hand-over has %d and blocks for %d",
                        coverage.first_layer, coverage.token_begin, end, target.tokens, room));
  }
  return absl::OkStatus();
}

}  // namespace aludel
