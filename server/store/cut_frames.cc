#include "server/store/cut_frames.h"

#include <utility>

#include "runtime/codec/aludel/embedded_coder.h"

namespace aludel {

StoredFrames CutFrames(const StoredFrames& frames, uint8_t planes) {
  if (planes == 0) return frames;
  auto cut = std::make_shared<std::vector<StoredFrame>>();
  cut->reserve(frames->size());
  for (const StoredFrame& frame : *frames) {
    const auto payload = TruncatePlanes(frame.payload, planes);
    if (!payload.ok()) return nullptr;
    cut->push_back({frame.coverage, {payload->begin(), payload->end()}});
  }
  return cut;
}

size_t CutBytes(const std::vector<StoredFrame>& frames, uint8_t planes) {
  size_t bytes = 0;
  for (const StoredFrame& frame : frames) {
    const auto payload = TruncatePlanes(frame.payload, planes);
    if (!payload.ok()) return 0;
    bytes += payload->size();
  }
  return bytes;
}

}  // namespace aludel
