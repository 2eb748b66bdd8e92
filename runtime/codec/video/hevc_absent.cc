// In place of the libraries where -DALUDEL_VIDEO=OFF, or their headers are missing.
#include "runtime/codec/video/hevc.h"

namespace aludel {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError(
      "packing video is not in this build: it takes libx265-dev and libavcodec-dev and -DALUDEL_VIDEO=ON");
}

}  // namespace

absl::Status LoadHevcEncoder() { return Absent(); }
absl::Status LoadHevcDecoder() { return Absent(); }
absl::StatusOr<std::vector<std::vector<uint8_t>>> EncodeHevcSequence(const HevcPictures&) { return Absent(); }
absl::Status DecodeHevcSequence(absl::Span<const absl::Span<const uint8_t>>, HevcPictures*) {
  return Absent();
}

}  // namespace aludel
