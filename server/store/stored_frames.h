#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/codec/frame.h"

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
inline size_t StoredWeight(int64_t tokens, const std::vector<StoredFrame>& frames) {
  constexpr size_t kChunk = 256;
  constexpr size_t kFrame = 64;
  size_t bytes = kChunk + static_cast<size_t>(tokens) * sizeof(int32_t);
  for (const StoredFrame& frame : frames) bytes += kFrame + frame.payload.size();
  return bytes;
}

}  // namespace aludel
