#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "server/handoff/frame_arena.h"

namespace aludel {

// The window of one handoff: a ring of frames in an extent. Places are reused as they are given back, in any
// order. A place is contiguous, so the end of the extent may stay empty for a turn; with C <= size - F no set
// of places that weighs C or less is ever refused the next one of at most F. Not thread-safe.
class FrameRing {
 public:
  // Places start on cache lines, as vector copies and checksums like it.
  static constexpr size_t kLine = 64;
  // What a place of `bytes` takes of the window: both ends of a handoff count alike.
  static constexpr size_t Weight(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

  explicit FrameRing(FrameExtent extent) : extent_(std::move(extent)) {}

  size_t size() const { return extent_.bytes().size(); }
  // The next place; nothing where it does not fit.
  std::optional<absl::Span<uint8_t>> Take(size_t bytes);
  // A place needs no more than this. The rest comes back at once where no place was taken since, else with the place.
  void Shrink(const uint8_t* place, size_t bytes);
  // What Take gave is no longer used. Its room comes back with that of all before it.
  void Return(const uint8_t* place);

  // Weight of the places that hold room now, and of all that ever came back.
  size_t held() const { return held_; }
  uint64_t returned() const { return returned_; }

 private:
  struct Place {
    size_t offset = 0;
    size_t weight = 0;
    bool returned = false;
  };
  FrameExtent extent_;
  std::deque<Place> places_;  // in order of Take; bounded by the lines of the extent
  size_t held_ = 0;
  uint64_t returned_ = 0;
};

}  // namespace aludel
