#include "server/prefill/chunk_recorder.h"

#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<absl::Span<uint8_t>> ChunkRecorder::Reserve(size_t max_bytes) {
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink_->Reserve(max_bytes));
  reserved_ = payload;
  return payload;
}

absl::Status ChunkRecorder::Commit(const FrameCoverage& coverage, size_t bytes) {
  keeper_.Add(coverage, reserved_.first(bytes));  // before it is shipped: then the memory is another's
  return sink_->Commit(coverage, bytes);
}

}  // namespace aludel
