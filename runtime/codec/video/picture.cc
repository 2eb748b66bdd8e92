#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "runtime/codec/video/hevc.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// The smallest coding block.
constexpr int64_t kBlock = 8;

int64_t PaddedSide(int64_t side) {
  return std::max<int64_t>(kMinPictureSide, (side + kBlock - 1) / kBlock * kBlock);
}

}  // namespace

bool FitsPicture(int64_t width, int64_t height) {
  if (width < 1 || width > kMaxPictureSide || height < 1 || height > kMaxPictureSide) return false;
  return PaddedSide(width) * PaddedSide(height) <= kMaxPictureSamples;
}

HevcPictures PaddedPicture(int64_t width, int64_t height) {
  ALUDEL_CHECK(FitsPicture(width, height));
  HevcPictures picture;
  picture.width = static_cast<int>(PaddedSide(width));
  picture.height = static_cast<int>(PaddedSide(height));
  picture.samples.assign(picture.plane_bytes(), 128);
  return picture;
}

absl::StatusOr<std::vector<uint8_t>> EncodeHevc(const HevcPictures& picture) {
  ALUDEL_CHECK(picture.count == 1);
  ALUDEL_ASSIGN_OR_RETURN(std::vector<std::vector<uint8_t>> slices, EncodeHevcSequence(picture));
  return std::move(slices.front());
}

absl::Status DecodeHevc(absl::Span<const uint8_t> slice, HevcPictures* picture) {
  ALUDEL_CHECK(picture->count == 1);
  return DecodeHevcSequence(absl::MakeConstSpan(&slice, 1), picture);
}

}  // namespace aludel
