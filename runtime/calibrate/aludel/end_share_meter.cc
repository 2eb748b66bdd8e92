#include "runtime/calibrate/aludel/end_share_meter.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/codec/aludel/code_range.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/status_macros.h"

namespace aludel {

EndShareMeter::EndShareMeter(const AludelShape& shape, const AludelEncoderWeights& encoder)
    : shape_(shape), encoder_(encoder) {
  for (const AludelEncoderGroup& group : encoder)
    coders_.push_back(MakeLatentCoder(group.grid, shape.packing));
}

absl::Status EndShareMeter::Add(const StoredFrame& frame) {
  ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
  for (size_t g = 0; g < encoder_.size(); ++g) {
    if (shape_.groups[g].first_layer != header.coverage.first_layer) continue;
    const LatentGrid& grid = encoder_[g].grid;
    std::vector<uint8_t> opened;
    ALUDEL_ASSIGN_OR_RETURN(
        const OpenedPlanes planes,
        OpenPlanes(frame.payload, grid, shape_.packing, coders_[g].get(), header.coverage.tokens, &opened));
    const EndCodes most = MostEndCodes(planes.bytes, grid.bits, shape_.packing, header.coverage.tokens);
    largest_ = std::max(largest_, EndShare(most, static_cast<int64_t>(grid.bits.size())));
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrFormat("a frame of layers from %d on, which no group of the encoder begins with",
                      header.coverage.first_layer));
}

}  // namespace aludel
