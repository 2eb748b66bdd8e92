#include "server/prefill/frame_recorder.h"

#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<absl::Span<uint8_t>> FrameRecorder::Reserve(size_t max_bytes) {
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink_->Reserve(max_bytes));
  reserved_ = payload;
  return payload;
}

absl::Status FrameRecorder::Commit(const FrameCoverage& coverage, size_t bytes) {
  bytes_ += bytes;
  if (bytes_ <= max_bytes_) {
    frames_.push_back({coverage, {reserved_.begin(), reserved_.begin() + static_cast<int64_t>(bytes)}});
  } else {
    frames_.clear();
  }
  return sink_->Commit(coverage, bytes);
}

}  // namespace aludel
