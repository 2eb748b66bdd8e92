#pragma once

#include <cstddef>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "server/prefill/frame_cache.h"

namespace aludel {

// Frames of the cache on their way to a sink, and how far they have got. One caller at a time.
class CachedFrames {
 public:
  CachedFrames() = default;
  explicit CachedFrames(FrameCache::Match match) : match_(std::move(match)) {}

  // Copies frames to `sink` while `has_room` for a frame of this weight (FrameRing::Weight). True: all have
  // gone. False: call again when there is room; goes on with the frame that had none.
  absl::StatusOr<bool> SendTo(FrameSink& sink, absl::FunctionRef<bool(size_t weight)> has_room);

  // Of the prompt, that these frames cover.
  int64_t tokens() const { return match_.tokens; }

 private:
  FrameCache::Match match_;
  size_t chunk_ = 0;
  size_t frame_ = 0;
};

}  // namespace aludel
