#include "runtime/calibrate/aludel/code_range_meter.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "runtime/codec/aludel/code_range.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/status_macros.h"

namespace aludel {

CodeRangeMeter::CodeRangeMeter(const AludelShape& shape, const AludelEncoderWeights& encoder)
    : shape_(shape),
      encoder_(encoder),
      range_{0, std::vector<double>(encoder.size())},
      digit_parts_(encoder.size()) {
  for (const AludelEncoderGroup& group : encoder)
    coders_.push_back(MakeLatentCoder(group.grid, shape.packing));
}

absl::Status CodeRangeMeter::Add(const WireFrame& frame) {
  ALUDEL_ASSIGN_OR_RETURN(const FrameHeader header, DecodeFrameHeader(frame.header));
  for (size_t g = 0; g < encoder_.size(); ++g) {
    if (shape_.groups[g].first_layer != header.coverage.first_layer) continue;
    const LatentGrid& grid = encoder_[g].grid;
    std::vector<uint8_t> opened;
    ALUDEL_ASSIGN_OR_RETURN(
        const OpenedPlanes planes,
        OpenPlanes(frame.payload, grid, shape_.packing, coders_[g].get(), header.coverage.tokens, &opened));
    const auto rank = static_cast<int64_t>(grid.bits.size());
    for (const CodeCount& part :
         CountCodes(planes.bytes, grid.bits, shape_.packing, header.coverage.tokens)) {
      range_.end_share = std::max(range_.end_share, EndShare(part, rank));
      const double digits = Digits(part, rank);
      range_.digits[g] = std::max(range_.digits[g], digits);
      digit_parts_[g] += static_cast<int64_t>(digits > 0);
    }
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrFormat("a frame of layers from %d on, which no group of the encoder begins with",
                      header.coverage.first_layer));
}

CodeRange CodeRangeMeter::range() const {
  CodeRange range = range_;
  for (size_t g = 0; g < digit_parts_.size(); ++g)
    if (digit_parts_[g] < kLeastDigitParts) range.digits[g] = 0;
  return range;
}

}  // namespace aludel
