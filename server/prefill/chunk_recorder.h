#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/store/feed/chunk_keeper.h"

namespace aludel {

// Passes an encoder's frames on to another sink, and stores each chunk as soon as its last frame is there (ChunkKeeper).
// Used from one thread at a time, as every sink.
class ChunkRecorder : public FrameSink {
 public:
  using Spec = ChunkKeeper::Spec;

  // What `spec` refers to must outlive the recorder.
  ChunkRecorder(std::shared_ptr<FrameSink> sink, Spec spec)
      : sink_(std::move(sink)), keeper_(std::move(spec)) {}

  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

  // Nothing more is encoded: those who wait for it need not any longer.
  void End() { keeper_.End(); }
  // Of what is stored, as far as this knows; once nothing more is encoded.
  const StorePosition& end() const { return keeper_.end(); }

 private:
  const std::shared_ptr<FrameSink> sink_;
  ChunkKeeper keeper_;
  absl::Span<const uint8_t> reserved_;
};

}  // namespace aludel
