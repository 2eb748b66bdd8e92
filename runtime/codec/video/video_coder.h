#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/aludel/latent_coder.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/codec/video/hevc.h"

namespace aludel {

// Payloads of this process that went out as they are because their picture could not be encoded, not because it did not pay.
struct VideoFailures {
  int64_t payloads = 0;
  std::string first;  // what was wrong with the first
};

VideoFailures GetVideoFailures();

// LatentPacking::kVideo: a frame's symbols as one picture, a latent a row and a token a column, through lossless HEVC
// (hevc.h). For machines whose video engines are idle, and to compare with; rANS takes less of everything on a CPU.
class VideoCoder : public LatentCoder {
 public:
  using PictureEncoder = absl::StatusOr<std::vector<uint8_t>>(const HevcPictures& picture);

  // Tests have encoders of their own.
  explicit VideoCoder(const LatentGrid& grid, PictureEncoder* encode = EncodeHevc);

  // Whether both sides of a format of such grids can work with frames of up to `tokens` tokens: InvalidArgument where a
  // picture would be too large, else as LoadHevcEncoder and LoadHevcDecoder.
  static absl::Status CheckEncoder(const std::vector<LatentGrid>& grids, int64_t tokens);
  static absl::Status CheckDecoder(const std::vector<LatentGrid>& grids);

  // Bound on a payload's bytes.
  static size_t MaxBytes(const std::vector<int>& bits, int64_t tokens);

  // Codes are left as they are where a picture would take more, or libx265 fails: GetVideoFailures.
  size_t Encode(absl::Span<const uint8_t> planes, int64_t tokens, absl::Span<uint8_t> payload) const override;
  absl::StatusOr<PlaneScale> Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                    std::vector<uint8_t>* planes) const override;

 private:
  absl::Status DecodePicture(absl::Span<const uint8_t> payload, int64_t tokens,
                             std::vector<uint8_t>* planes) const;
  absl::Status CheckRanges(const std::vector<uint8_t>& planes, int64_t tokens) const;

  PlaneScale scale_;
  PictureEncoder* const encode_;
};

}  // namespace aludel
