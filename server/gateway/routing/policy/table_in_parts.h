#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/hash/hash.h"
#include "absl/types/span.h"

namespace aludel {

// A hash table in parts, so that none takes long to grow under a lock, also where a peer chooses its keys. A table of
// a million keys takes tens of milliseconds to grow.
template <typename Table, size_t kParts>
class TableInParts {
 public:
  Table& Of(uint64_t key) { return parts_[PartOf(key)]; }
  const Table& Of(uint64_t key) const { return parts_[PartOf(key)]; }
  const std::array<Table, kParts>& parts() const { return parts_; }
  // Before look-ups of them, which are anywhere in memory: waiting for all at once takes as long as for one.
  void Prefetch(absl::Span<const uint64_t> keys) const {
    for (const uint64_t key : keys) Of(key).prefetch(key);
  }

 private:
  // A table looks at the lower bits.
  static size_t PartOf(uint64_t key) { return (absl::HashOf(key) >> 40) % kParts; }

  std::array<Table, kParts> parts_;
};

}  // namespace aludel
