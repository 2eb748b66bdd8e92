#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/store/feed/chunk_keeper.h"

namespace aludel {

// Passes an encoder's frames on to another sink, and stores each chunk as soon as its last frame is there (ChunkKeeper).
// As a sink used from one thread at a time; the other calls may come from any.
class ChunkRecorder : public FrameSink {
 public:
  using Spec = ChunkKeeper::Spec;

  // What `spec` refers to must outlive the recorder.
  ChunkRecorder(std::shared_ptr<FrameSink> sink, Spec spec)
      : sink_(std::move(sink)), keeper_(std::move(spec)) {}

  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

  // Unless a frame was begun: from now on none is taken, and Reserve fails with Withdrawn. False: frames have left.
  bool Withdraw();
  static absl::Status Withdrawn() { return absl::CancelledError("another part takes the place of this one"); }
  // As ChunkKeeper's.
  void SetFront(const StorePosition& front);
  // Nothing more is encoded: those who wait for it need not any longer.
  void End();
  // Of what is stored, as far as this knows; once nothing more is encoded.
  StorePosition end();

 private:
  const std::shared_ptr<FrameSink> sink_;
  std::deque<absl::Span<const uint8_t>> reserved_;  // the sink's, oldest first
  absl::Mutex mutex_;
  ChunkKeeper keeper_ ABSL_GUARDED_BY(mutex_);
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool withdrawn_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
