#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/codec/codec.h"
#include "server/prefill/frame_cache.h"

namespace aludel {

// Passes frames on to another sink and keeps a copy of each, up to a limit beyond which it keeps none. Used
// from one thread at a time, as every sink.
class FrameRecorder : public FrameSink {
 public:
  FrameRecorder(std::shared_ptr<FrameSink> sink, size_t max_bytes)
      : sink_(std::move(sink)), max_bytes_(max_bytes) {}

  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

  // What was kept; empty where it was too much.
  std::vector<CachedFrame> TakeFrames() { return std::move(frames_); }

 private:
  const std::shared_ptr<FrameSink> sink_;
  const size_t max_bytes_;
  absl::Span<const uint8_t> reserved_;
  size_t bytes_ = 0;
  std::vector<CachedFrame> frames_;
};

}  // namespace aludel
