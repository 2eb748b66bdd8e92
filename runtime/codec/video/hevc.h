#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace aludel {

// Pictures of bytes through lossless HEVC (ITU-T H.265), one slice a picture, without parameter sets: the first an IDR picture, each
// further one predicted from the one before. Encoded by libx265, decoded by libavcodec's own software decoder, each on one
// thread. Both are loaded when they are first asked for: nothing links them (libx265 is under the GPL, and so is Debian's
// libavcodec). All functions are thread-safe.

struct HevcPictures {
  int width = 0;  // both are multiples of 8
  int height = 0;
  int count = 1;
  bool three_planes = false;     // 4:4:4; else 4:2:0 of which chroma is flat
  std::vector<uint8_t> samples;  // [count, 3 planes or luma alone, height, width]

  size_t plane_bytes() const { return static_cast<size_t>(width) * height; }
  int planes() const { return three_planes ? 3 : 1; }
};

// NVIDIA's decoders take none that are smaller.
inline constexpr int kMinPictureSide = 144;
// Pictures 16 wide that libx265 3.5 had predicted from others came back with other samples at their edges, for reasons unknown; none
// of those that are wider did.
inline constexpr int kMinSequenceSide = 32;
// Within level 6.2; bounds what a frame can make a decoder allocate, too.
inline constexpr int kMaxPictureSide = 8192;
inline constexpr int64_t kMaxPictureSamples = int64_t{1} << 25;

// True where a picture of so many samples each way, once padded, is within the bounds.
bool FitsPicture(int64_t width, int64_t height);
// One of so many samples, padded: every sample of it is 128, what padding is. Precondition: FitsPicture.
HevcPictures PaddedPicture(int64_t width, int64_t height);

// Whether encoding, or decoding, is possible in this process. FailedPrecondition says which library is missing, or is not
// the one that this was built with; Unimplemented, that it was built with -DALUDEL_VIDEO=OFF.
absl::Status LoadHevcEncoder();
absl::Status LoadHevcDecoder();

// A slice for each picture, without its NAL unit header. InvalidArgument where there are several below kMinSequenceSide;
// Internal where libx265 fails, or as LoadHevcEncoder.
absl::StatusOr<std::vector<std::vector<uint8_t>>> EncodeHevcSequence(const HevcPictures& pictures);

// The inverse: sets `pictures->samples`; all else of it is known. DataLoss where `slices` are not one whole slice a picture, as
// far as libavcodec can tell: not every damage is seen, but no byte is left unset. Else as LoadHevcDecoder.
absl::Status DecodeHevcSequence(absl::Span<const absl::Span<const uint8_t>> slices, HevcPictures* pictures);

// Of one picture.
absl::StatusOr<std::vector<uint8_t>> EncodeHevc(const HevcPictures& picture);
absl::Status DecodeHevc(absl::Span<const uint8_t> slice, HevcPictures* picture);

}  // namespace aludel
