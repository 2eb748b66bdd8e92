#include "server/bench/store/sim_frames.h"

#include <algorithm>
#include <cmath>

namespace aludel {
namespace {

constexpr int kLengthBits = 7;  // of a length's byte

size_t LengthBytes(size_t length) {
  size_t bytes = 1;
  while (length >>= kLengthBits) ++bytes;
  return bytes;
}

// A plane with its length, which take so many bytes in all, or one more where no length does.
void AddPlane(size_t bytes, std::vector<uint8_t>* payload) {
  size_t length = bytes - std::min<size_t>(bytes, 1);
  while (length > 0 && length + LengthBytes(length) > bytes) --length;
  size_t rest = length;
  for (; rest >> kLengthBits != 0; rest >>= kLengthBits)
    payload->push_back(static_cast<uint8_t>(rest | 0x80));
  payload->push_back(static_cast<uint8_t>(rest));
  payload->resize(payload->size() + length);
}

}  // namespace

std::vector<uint8_t> SimFrames::Payload(int64_t tokens, size_t format) const {
  std::vector<uint8_t> payload;
  for (size_t cut = bytes_.size(); cut-- > format;) {
    const auto end = static_cast<size_t>(std::lround(static_cast<double>(tokens) * bytes_[cut]));
    AddPlane(end - std::min(end, payload.size()), &payload);
  }
  return payload;
}

StoredFrames SimFrames::Of(int64_t tokens, uint8_t planes) {
  Made& made = MadeOf(tokens, planes);
  StoredFrames frames = made.frames.lock();
  if (frames == nullptr) {
    const size_t format = planes == 0 ? 0 : bytes_.size() - planes;
    frames = std::make_shared<const std::vector<StoredFrame>>(
        std::vector<StoredFrame>{{FrameCoverage(), Payload(tokens, format)}});
    made = {frames, frames->front().payload.size()};
  }
  return frames;
}

size_t SimFrames::PayloadBytes(int64_t tokens, uint8_t planes) {
  if (MadeOf(tokens, planes).payload_bytes == 0) Of(tokens, planes);
  return MadeOf(tokens, planes).payload_bytes;
}

}  // namespace aludel
