#include "server/prefill/cached_frames.h"

#include <algorithm>
#include <vector>

#include "runtime/status_macros.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/frame_ring.h"

namespace aludel {

absl::StatusOr<bool> CachedFrames::SendTo(FrameSink& sink, absl::FunctionRef<bool(size_t weight)> has_room) {
  for (; chunk_ < match_.chunks.size(); ++chunk_, frame_ = 0) {
    const std::vector<CachedFrame>& frames = *match_.chunks[chunk_];
    for (; frame_ < frames.size(); ++frame_) {
      const CachedFrame& frame = frames[frame_];
      if (!has_room(FrameRing::Weight(frame.payload.size() + FrameCipher::kTagBytes))) return false;
      ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink.Reserve(frame.payload.size()));
      std::copy(frame.payload.begin(), frame.payload.end(), payload.begin());
      ALUDEL_RETURN_IF_ERROR(sink.Commit(frame.coverage, frame.payload.size()));
    }
  }
  return true;
}

}  // namespace aludel
