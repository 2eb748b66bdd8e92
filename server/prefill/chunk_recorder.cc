#include "server/prefill/chunk_recorder.h"

#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<absl::Span<uint8_t>> ChunkRecorder::Reserve(size_t max_bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (withdrawn_) return Withdrawn();
    begun_ = true;
  }
  ALUDEL_ASSIGN_OR_RETURN(const absl::Span<uint8_t> payload, sink_->Reserve(max_bytes));
  reserved_.push_back(payload);
  return payload;
}

absl::Status ChunkRecorder::Commit(const FrameCoverage& coverage, size_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    keeper_.Add(coverage,
                reserved_.front().first(bytes));  // before it is shipped: then the memory is another's
  }
  reserved_.pop_front();
  return sink_->Commit(coverage, bytes);
}

bool ChunkRecorder::Withdraw() {
  absl::MutexLock lock(&mutex_);
  withdrawn_ = !begun_;
  return withdrawn_;
}

void ChunkRecorder::SetFront(const StorePosition& front) {
  absl::MutexLock lock(&mutex_);
  keeper_.SetFront(front);
}

void ChunkRecorder::End() {
  absl::MutexLock lock(&mutex_);
  keeper_.End();
}

StorePosition ChunkRecorder::end() {
  absl::MutexLock lock(&mutex_);
  return keeper_.end();
}

}  // namespace aludel
