#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "server/gateway/routing/policy/prefix_keys.h"
#include "server/gateway/routing/policy/slot_set.h"
#include "server/gateway/routing/policy/table_in_parts.h"

namespace aludel {

// What one server's cache holds, made of what it said. To make and to destroy it takes a while where it holds much: not under
// a lock.
class KnownCache {
 public:
  // In steps of `key_tokens`.
  KnownCache(absl::Span<const KeyChange> keys, int64_t key_tokens);

  size_t keys() const { return size_; }
  // Those that requests are routed by.
  std::vector<uint64_t> Ends() const;

 private:
  friend class KnownPrefixes;
  using Keys = TableInParts<absl::flat_hash_set<uint64_t>, 64>;

  const int64_t key_tokens_;
  size_t size_ = 0;
  Keys keys_;
  Keys ends_;  // of them, those that requests are routed by
};

// Which beginnings servers have said that their caches hold, for those that have: what PrefixIndex guesses of the others.
// A server tells of every shorter beginning of what it has, too. Bounded by max_keys. Not thread-safe.
class KnownPrefixes {
 public:
  static constexpr size_t kMaxKeys = 4'000'000;  // of all servers
  // `max_keys`: what has more is refused, of whichever server it is. CacheFeeds keeps to kMaxKeys, and chooses; until it has,
  // there may be more.
  explicit KnownPrefixes(size_t max_keys = 2 * kMaxKeys) : max_keys_(max_keys) {}

  // All that the server's cache holds, in steps of `key_tokens`. False: it is too much, and nothing is known of the server.
  bool Replace(size_t slot, absl::Span<const KeyChange> keys, int64_t key_tokens);
  // What has changed since. False: it is too much, and to be forgotten. Or nothing was known.
  bool Apply(size_t slot, absl::Span<const KeyChange> changes);
  void Forget(size_t slot);
  bool knows(size_t slot) const { return slot < caches_.size() && caches_[slot] != nullptr; }

  // Forget and Replace in steps, for callers whose lock others wait for. Nothing is known of the server from Take on, which
  // gives what it had: all of its Ends() are to be unlinked. Null: nothing was known.
  std::unique_ptr<KnownCache> Take(size_t slot);
  void Unlink(size_t slot, absl::Span<const uint64_t> ends);
  bool has_room(size_t keys) const { return size_ + keys <= max_keys_; }
  // Of a cache that Put is to know, when all of its Ends() are linked. A cache that is left there is too much.
  void Link(size_t slot, absl::Span<const uint64_t> ends);
  void Put(size_t slot, std::unique_ptr<KnownCache>* cache);

  // Into (*tokens)[slot] of each server that is known: of the longest beginning that requests are routed by and that it has,
  // 0 for none. One look-up a key and a bit a server.
  void Match(const PrefixKeys& keys, std::vector<int64_t>* tokens) const;
  // As Match of one server that is known, to the token.
  int64_t Cached(size_t slot, const PrefixKeys& keys) const;
  // A prompt's last token is always computed: so many tokens of it may be cached there.
  int64_t AtMost(size_t slot, int64_t tokens, const PrefixKeys& keys) const;

  size_t keys() const { return size_; }
  size_t keys(size_t slot) const { return knows(slot) ? caches_[slot]->size_ : 0; }

 private:
  void Remove(size_t slot, uint64_t key);
  void LinkOne(size_t slot, uint64_t key) { holders_.Of(key)[key].Add(slot); }
  void UnlinkOne(size_t slot, uint64_t key);

  const size_t max_keys_;
  size_t size_ = 0;                                                     // keys of all caches
  std::vector<std::unique_ptr<KnownCache>> caches_;                     // by slot; null: it is not known
  TableInParts<absl::flat_hash_map<uint64_t, SlotSet>, 1024> holders_;  // of `ends_`, and of caches in steps
  mutable std::vector<uint64_t> seen_;                                  // of Match, kept for its memory
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
  // None counts for longer than that.
  void Shorten(double until);
  // Tokens of the longest beginning of one of them.
  int64_t Match(const PrefixKeys& keys, double now);

 private:
  struct Prompt {
    std::vector<uint64_t> keys;
    double until;
  };
  void Expire(double now);
  void Forget(const Prompt& prompt);

  std::deque<Prompt> prompts_;  // in the order of their times
  absl::flat_hash_map<uint64_t, int> counts_;
};

}  // namespace aludel
