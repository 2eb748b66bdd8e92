#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "server/gateway/routing/policy/prefix_keys.h"
#include "server/gateway/routing/policy/slot_set.h"

namespace aludel {

// Which beginnings servers have said that their caches hold, for those that have: what PrefixIndex guesses of the others.
// A server tells of every shorter beginning of what it has, too. Bounded by kMaxKeys. Not thread-safe.
class KnownPrefixes {
 public:
  static constexpr size_t kMaxKeys = 4'000'000;  // of all servers
  explicit KnownPrefixes(size_t max_keys = kMaxKeys) : max_keys_(max_keys) {}

  // All that the server's cache holds, in steps of `key_tokens`. False: it is too much, and nothing is known of the server.
  bool Replace(size_t slot, absl::Span<const KeyChange> keys, int64_t key_tokens);
  // What has changed since. False, too, where nothing was known.
  bool Apply(size_t slot, absl::Span<const KeyChange> changes);
  void Forget(size_t slot);
  bool knows(size_t slot) const { return slot < caches_.size() && caches_[slot].key_tokens > 0; }

  // Into (*tokens)[slot] of each server that is known: of the longest beginning that requests are routed by and that it has,
  // 0 for none. One look-up a key and a bit a server.
  void Match(const PrefixKeys& keys, std::vector<int64_t>* tokens) const;
  // As Match of one server that is known, to the token.
  int64_t Cached(size_t slot, const PrefixKeys& keys) const;
  // A prompt's last token is always computed: so many tokens of it may be cached there.
  int64_t AtMost(size_t slot, int64_t tokens, const PrefixKeys& keys) const;

  size_t keys() const { return size_; }

 private:
  struct Cache {
    int64_t key_tokens = 0;  // 0: it is not known
    absl::flat_hash_set<uint64_t> keys;
    absl::flat_hash_set<uint64_t> ends;  // of them, those that requests are routed by
  };
  void Remove(size_t slot, uint64_t key);

  const size_t max_keys_;
  size_t size_ = 0;                                 // keys of all caches
  std::vector<Cache> caches_;                       // by slot
  absl::flat_hash_map<uint64_t, SlotSet> holders_;  // of `ends`
  mutable std::vector<uint64_t> seen_;              // of Match, kept for its memory
};

// Of one server, the prompts that were sent there a moment ago: it does not tell of them before they are computed, and the
// next one that begins alike shall follow them. Times are seconds of one clock. Bounded by kMaxPrompts; not thread-safe.
class PromptsUnderWay {
 public:
  static constexpr size_t kMaxPrompts = 1024;

  void Add(const PrefixKeys& keys, double until, double now);
  // It was not taken.
  void Drop(const PrefixKeys& keys);
  void Clear() { *this = PromptsUnderWay(); }
  // Tokens of the longest beginning of one of them.
  int64_t Match(const PrefixKeys& keys, double now);

 private:
  struct Prompt {
    std::vector<uint64_t> keys;
    double until;
  };
  void Expire(double now);
  void Forget(const Prompt& prompt);

  std::deque<Prompt> prompts_;
  absl::flat_hash_map<uint64_t, int> counts_;
};

}  // namespace aludel
