#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "runtime/codec/frame.h"
#include "runtime/codec/store/segment_scan.h"

namespace aludel {

// One frame without its header, which names the ticket.
struct StoredFrame {
  FrameCoverage coverage;
  std::vector<uint8_t> payload;
};

// All frames of one chunk: the tokens that one step of the engine encoded. Immutable; holding it is the lease, so that
// what is being sent outlives its entry in the store.
using StoredFrames = std::shared_ptr<const std::vector<StoredFrame>>;

// What an entry weighs in memory: payloads, and roughly what stands beside them.
inline size_t StoredWeight(int64_t tokens, size_t frames, size_t payload_bytes) {
  constexpr size_t kChunk = 256;
  constexpr size_t kFrame = 64;
  return kChunk + static_cast<size_t>(tokens) * sizeof(int32_t) + frames * kFrame + payload_bytes;
}
inline size_t StoredWeight(int64_t tokens, const std::vector<StoredFrame>& frames) {
  size_t bytes = 0;
  for (const StoredFrame& frame : frames) bytes += frame.payload.size();
  return StoredWeight(tokens, frames.size(), bytes);
}

// Of a record, to write and as read.
inline std::vector<absl::Span<const uint8_t>> PayloadsOf(const std::vector<StoredFrame>& frames) {
  std::vector<absl::Span<const uint8_t>> payloads;
  for (const StoredFrame& frame : frames) payloads.emplace_back(frame.payload);
  return payloads;
}

inline StoredFrames ToFrames(const LoadedChunk& chunk) {
  auto frames = std::make_shared<std::vector<StoredFrame>>();
  auto at = chunk.payloads.begin();
  for (const StoredFrameHead& head : chunk.meta.frames) {
    frames->push_back({head.coverage, {at, at + head.payload_bytes}});
    at += head.payload_bytes;
  }
  return frames;
}

}  // namespace aludel
