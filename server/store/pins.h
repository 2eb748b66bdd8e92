#pragma once

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/store/chunk_key.h"

namespace aludel {

// Which chunks stay in memory until when, within a budget in bytes. Not thread-safe.
class Pins {
 public:
  struct Wish {
    ChunkKey key;
    size_t bytes = 0;
  };

  explicit Pins(size_t budget) : budget_(budget) {}

  // All of them until then, or longer where they are pinned for longer; or none, ResourceExhausted. What is pinned counts
  // with the most bytes that were wished for it.
  absl::Status Pin(absl::Span<const Wish> chunks, absl::Time until, absl::Time now);
  // What is pinned takes so many bytes from now on. False, and no change: that is more than the budget.
  bool Resize(const ChunkKey& key, size_t bytes, absl::Time now);
  // Whether it was pinned.
  bool Unpin(const ChunkKey& key);
  bool IsPinned(const ChunkKey& key, absl::Time now) const { return Until(key) > now; }
  // InfinitePast where it never was.
  absl::Time Until(const ChunkKey& key) const;
  // Of pins that may have ended, too.
  std::vector<ChunkKey> Keys() const;
  void Clear();

  // Of pins that may have ended, too, both.
  size_t bytes() const { return bytes_; }
  size_t count() const { return pins_.size(); }
  size_t budget() const { return budget_; }

 private:
  struct Pinned {
    absl::Time until;
    size_t bytes = 0;
  };
  void DropEnded(absl::Time now);

  const size_t budget_;
  size_t bytes_ = 0;
  absl::flat_hash_map<ChunkKey, Pinned, ChunkKeyHash> pins_;
};

}  // namespace aludel
