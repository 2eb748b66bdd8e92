#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "transport/transport.h"

namespace aludel {

class FrameArena;

// A piece of the arena; returns to it when this dies. Every possible reader or writer of the bytes holds one.
class FrameExtent {
 public:
  FrameExtent() = default;
  FrameExtent(FrameExtent&& other) noexcept { *this = std::move(other); }
  FrameExtent& operator=(FrameExtent&& other) noexcept;
  FrameExtent(const FrameExtent&) = delete;
  FrameExtent& operator=(const FrameExtent&) = delete;
  ~FrameExtent();

  absl::Span<uint8_t> bytes() const { return bytes_; }

 private:
  friend class FrameArena;
  FrameExtent(FrameArena* arena, absl::Span<uint8_t> bytes) : arena_(arena), bytes_(bytes) {}
  FrameArena* arena_ = nullptr;
  absl::Span<uint8_t> bytes_;
};

// Registered memory for frames, allocated once: one extent per handoff, so that no handoff can take
// another's room and none grows after it was admitted. First fit with merging of neighbors. Thread-safe.
// Extents must die before the arena, and the arena before its transport.
class FrameArena {
 public:
  static absl::StatusOr<std::unique_ptr<FrameArena>> Create(Transport* transport, size_t bytes);

  // ResourceExhausted names what was wanted and the largest free piece.
  absl::StatusOr<FrameExtent> Reserve(size_t bytes);

  absl::Span<uint8_t> memory() const { return region_->bytes(); }
  size_t bytes_total() const { return total_; }
  size_t bytes_reserved() const;

 private:
  friend class FrameExtent;
  FrameArena(std::unique_ptr<MemoryRegion> region, size_t bytes);
  void Return(absl::Span<uint8_t> bytes);

  const std::unique_ptr<MemoryRegion> region_;
  const size_t total_;
  mutable absl::Mutex mutex_;
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mutex_);  // offset -> bytes, no two adjacent
  size_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
