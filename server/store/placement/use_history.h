#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/store/placement/placement.h"

namespace aludel {

// Uses of entries that have left a store, so that one that comes back is not taken for new. Where a memory keeps entries for less
// than the time between two uses, only this tells what is used again and again from what was used once. Of a fixed size,
// 16 bytes a key: each key may be in kWays places, of which the one whose count is worth least is taken, so that old counts
// make room for new ones. Two keys that are equal share a count. Not thread-safe.
class UseHistory {
 public:
  static constexpr size_t kWays = 8;

  // At least `keys` of them, evenly distributed over 64 bits.
  explicit UseHistory(size_t keys) : places_((keys + kWays - 1) / kWays * kWays) {}

  // Empty: not known.
  DecayedCount Find(uint64_t key) const;
  // In place of what is known of the key.
  void Put(uint64_t key, const DecayedCount& uses);
  void Clear() { places_.assign(places_.size(), {}); }

 private:
  struct Place {
    uint64_t key = 0;
    DecayedCount uses;
  };
  size_t FirstPlace(uint64_t key) const { return key % (places_.size() / kWays) * kWays; }

  std::vector<Place> places_;
};

}  // namespace aludel
