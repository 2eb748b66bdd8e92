#include "runtime/codec/video/video_coder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "kernels/check.h"
#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/low_bits.h"
#include "runtime/codec/video/hevc.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// A payload's first byte.
constexpr uint8_t kAsTheyAre = 0;
constexpr uint8_t kPicture = 1;

// Of a picture's samples: a symbol's two's complement with its high bit turned, so that 0 is in the middle.
constexpr uint8_t kZero = 0x80;

// Of all coders. Thread-safe.
class FailureCount {
 public:
  void Add(const absl::Status& failed) {
    absl::MutexLock lock(&mutex_);
    if (counted_.payloads++ == 0) counted_.first = std::string(failed.message());
  }
  VideoFailures Get() {
    absl::MutexLock lock(&mutex_);
    return counted_;
  }

 private:
  absl::Mutex mutex_;
  VideoFailures counted_ ABSL_GUARDED_BY(mutex_);
};

FailureCount& TheFailures() {
  static FailureCount failures;
  return failures;
}

absl::Status CheckSize(const std::vector<int>& bits, int64_t tokens) {
  const auto rank = static_cast<int64_t>(bits.size());
  if (FitsPicture(tokens, rank)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "packing video: %d tokens of rank %d are no picture; it has %d x %d samples at most, %d in all", tokens,
      rank, kMaxPictureSide, kMaxPictureSide, kMaxPictureSamples));
}

}  // namespace

VideoFailures GetVideoFailures() { return TheFailures().Get(); }

VideoCoder::VideoCoder(const LatentGrid& grid, PictureEncoder* encode)
    : scale_{grid.bits, grid.step}, encode_(encode) {}

absl::Status VideoCoder::CheckEncoder(const std::vector<LatentGrid>& grids, int64_t tokens) {
  for (const LatentGrid& grid : grids) ALUDEL_RETURN_IF_ERROR(CheckSize(grid.bits, tokens));
  return LoadHevcEncoder();
}

absl::Status VideoCoder::CheckDecoder(const std::vector<LatentGrid>& grids) {
  for (const LatentGrid& grid : grids) ALUDEL_RETURN_IF_ERROR(CheckSize(grid.bits, 1));
  return LoadHevcDecoder();
}

size_t VideoCoder::MaxBytes(const std::vector<int>& bits, int64_t tokens) {
  return 1 + PlaneBytes(bits, LatentPacking::kVideo, tokens);
}

size_t VideoCoder::Encode(absl::Span<const uint8_t> planes, int64_t tokens,
                          absl::Span<uint8_t> payload) const {
  ALUDEL_CHECK(payload.size() >= MaxBytes(scale_.bits, tokens));
  const auto rank = static_cast<int64_t>(scale_.bits.size());
  const size_t low_bytes = LowBitBytes(scale_.bits, tokens);
  const std::vector<uint8_t> symbols = SplitLowBits(planes, scale_.bits, tokens, payload.data() + 1);
  if (FitsPicture(tokens, rank)) {
    HevcPictures picture = PaddedPicture(tokens, rank);
    for (int64_t i = 0; i < rank; ++i) {
      std::transform(symbols.begin() + i * tokens, symbols.begin() + (i + 1) * tokens,
                     picture.samples.begin() + i * picture.width,
                     [](uint8_t symbol) { return symbol ^ kZero; });
    }
    const absl::StatusOr<std::vector<uint8_t>> slice = encode_(picture);
    if (!slice.ok()) {
      TheFailures().Add(slice.status());
    } else if (low_bytes + slice->size() < planes.size()) {
      payload[0] = kPicture;
      std::copy(slice->begin(), slice->end(), payload.begin() + 1 + low_bytes);
      return 1 + low_bytes + slice->size();
    }
  }
  payload[0] = kAsTheyAre;
  std::copy(planes.begin(), planes.end(), payload.begin() + 1);
  return 1 + planes.size();
}

absl::StatusOr<PlaneScale> VideoCoder::Decode(absl::Span<const uint8_t> payload, int64_t tokens,
                                              std::vector<uint8_t>* planes) const {
  const size_t want = PlaneBytes(scale_.bits, LatentPacking::kVideo, tokens);
  if (payload.empty() || payload[0] > kPicture || payload.size() > 1 + want) {
    return absl::DataLossError(absl::StrFormat(
        "latents are %d bytes and begin with %d, want at most %d and 0 or 1 (%d tokens of rank %d)",
        payload.size(), payload.empty() ? -1 : payload[0], 1 + want, tokens, scale_.bits.size()));
  }
  const absl::Span<const uint8_t> rest = payload.subspan(1);
  if (payload[0] == kPicture) {
    ALUDEL_RETURN_IF_ERROR(DecodePicture(rest, tokens, planes));
  } else if (rest.size() == want) {
    planes->assign(rest.begin(), rest.end());
  } else {
    return absl::DataLossError(absl::StrFormat("latents are %d bytes, want %d (%d tokens of rank %d)",
                                               rest.size(), want, tokens, scale_.bits.size()));
  }
  ALUDEL_RETURN_IF_ERROR(CheckRanges(*planes, tokens));
  return scale_;
}

absl::Status VideoCoder::DecodePicture(absl::Span<const uint8_t> payload, int64_t tokens,
                                       std::vector<uint8_t>* planes) const {
  const auto rank = static_cast<int64_t>(scale_.bits.size());
  const size_t low_bytes = LowBitBytes(scale_.bits, tokens);
  if (!FitsPicture(tokens, rank) || payload.size() <= low_bytes) {
    return absl::DataLossError(
        absl::StrFormat("a picture of %d bytes, want more than %d (%d tokens of rank %d)", payload.size(),
                        low_bytes, tokens, rank));
  }
  HevcPictures picture = PaddedPicture(tokens, rank);
  ALUDEL_RETURN_IF_ERROR(DecodeHevc(payload.subspan(low_bytes), &picture));
  std::vector<uint8_t> symbols(static_cast<size_t>(rank * tokens));
  for (int64_t y = 0; y < picture.height; ++y) {
    const auto row = picture.samples.begin() + y * picture.width;
    const int64_t used = y < rank ? tokens : 0;
    if (std::any_of(row + used, row + picture.width, [](uint8_t sample) { return sample != kZero; })) {
      return absl::DataLossError(absl::StrFormat("a picture's padding in row %d is not flat", y));
    }
    std::transform(row, row + used, symbols.begin() + y * tokens,
                   [](uint8_t sample) { return sample ^ kZero; });
  }
  JoinLowBits(symbols, payload.data(), scale_.bits, tokens, planes);
  return absl::OkStatus();
}

// A picture holds any byte, whatever a latent's bits are.
absl::Status VideoCoder::CheckRanges(const std::vector<uint8_t>& planes, int64_t tokens) const {
  const std::vector<LatentPlane> layout = PlanesOf(scale_.bits, LatentPacking::kVideo, tokens);
  for (size_t i = 0; i < layout.size(); ++i) {
    const uint8_t* const low = planes.data() + layout[i].offset;
    const uint8_t* const high = layout[i].high_offset == 0 ? nullptr : planes.data() + layout[i].high_offset;
    const int limit = 1 << (scale_.bits[i] - 1);
    for (int64_t t = 0; t < tokens; ++t) {
      const int code =
          high == nullptr ? static_cast<int8_t>(low[t]) : static_cast<int16_t>(low[t] | high[t] << 8);
      if (code >= -limit && code < limit) continue;
      return absl::DataLossError(absl::StrFormat(
          "code %d of latent %d, token %d, does not fit in its %d bits", code, i, t, scale_.bits[i]));
    }
  }
  return absl::OkStatus();
}

}  // namespace aludel
