#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "server/gateway/routing/policy/prefix_keys.h"
#include "server/gateway/routing/policy/slot_set.h"
#include "server/gateway/routing/policy/table_in_parts.h"

namespace aludel {

// The beginnings that one cache holds, as far as is known: least recently used ones go first. Not thread-safe.
class PrefixLru {
 public:
  // Of prompts' tokens; a beginning counts only what it has beyond the next shorter one.
  explicit PrefixLru(int64_t capacity_tokens) : capacity_(capacity_tokens) {}

  // The first `count` keys are used now. Appends keys that are new, and those that went for them.
  void Touch(const PrefixKeys& keys, size_t count, std::vector<uint64_t>* added,
             std::vector<uint64_t>* evicted);
  // It is not here any more.
  void Erase(uint64_t key);
  // Tokens of the longest beginning that is here.
  int64_t Match(const PrefixKeys& keys) const;
  void SetCapacity(int64_t tokens) { capacity_ = tokens; }

  // All that are here, in no order.
  std::vector<uint64_t> keys() const;
  int64_t tokens() const { return tokens_; }
  size_t size() const { return index_.size(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    uint64_t key = 0;
    int64_t tokens = 0;
    uint32_t older = kNone;
    uint32_t newer = kNone;
  };
  void Unlink(uint32_t at);
  void LinkNewest(uint32_t at);

  int64_t capacity_;
  int64_t tokens_ = 0;
  std::vector<Node> nodes_;
  std::vector<uint32_t> free_;
  absl::flat_hash_map<uint64_t, uint32_t> index_;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
};

// Which of a gateway's servers are believed to have which beginnings. Slots are small numbers that the owner gives to
// servers. Bounded by the servers' capacities. Not thread-safe.
class PrefixIndex {
 public:
  // `slot` holds nothing, and may hold so much.
  void Reset(size_t slot, int64_t capacity_tokens);
  void SetCapacity(size_t slot, int64_t capacity_tokens);
  // Its first `count` keys were used at `slot`.
  void Insert(size_t slot, const PrefixKeys& keys, size_t count);
  // Of the keys, those of beginnings longer than `tokens` were not used there.
  void Erase(size_t slot, const PrefixKeys& keys, int64_t tokens);
  // Into (*tokens)[slot]: of the longest beginning that each slot has, 0 for none. One look-up a key and a bit a server.
  void Match(const PrefixKeys& keys, std::vector<int64_t>* tokens) const;

  size_t keys() const;

 private:
  void Forget(size_t slot, absl::Span<const uint64_t> keys);

  std::vector<PrefixLru> caches_;  // by slot
  TableInParts<absl::flat_hash_map<uint64_t, SlotSet>, 4096> holders_;
  std::vector<uint64_t> added_, evicted_;  // of Insert, kept for their memory
  mutable std::vector<uint64_t> seen_;     // of Match, likewise
};

}  // namespace aludel
