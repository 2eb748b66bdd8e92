#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/kv/block_pool.h"

namespace aludel {

// Where the content of a prefix comes from. Two prefixes with the same tokens may serve the same request only
// where this is equal, too; it is inherited: what is computed over a lossy prefix is lossy.
struct Provenance {
  std::string model_hash;
  std::string format;           // "": exact, computed by the model itself; else the wire format it came in
  std::string artifact_hash;    // of the format's encoder, and of what decodes it here
  int64_t recomputed_head = 0;  // tokens at the start that are the model's own all the same
  std::string salt = {};        // the tenant's: prefixes of two salts are never shared, equal as they may be
  // Another model computes the tokens from `turn_begin` on, over the first one's; "": none does.
  std::string turn_hash = {};
  int64_t turn_begin = 0;
};

// Names a full block by everything its content depends on: provenance, all tokens before it and its own.
// SHA-256, so that no prompt can be made that is taken for another.
using PrefixHash = std::array<uint8_t, 32>;

// The hashes of a token sequence's full blocks, made once as the sequence grows. Blocks before a turn are named as if
// there was none.
class PrefixChain {
 public:
  PrefixChain(const Provenance& provenance, int block_tokens);

  // Hashes of the full blocks of `tokens`, which begin with what was passed before. Valid until the
  // next call.
  absl::Span<const PrefixHash> Extend(absl::Span<const int32_t> tokens);

 private:
  PrefixHash root_;
  // What the first block with tokens of the other model is named by, beside them; "": none is.
  std::string turn_;
  int64_t turn_begin_;
  int block_tokens_;
  std::vector<PrefixHash> hashes_;
};

class PrefixWatcher;

// Full blocks of the pool by what they hold, so that sequences that begin alike share them. Keeps no memory
// of its own: an unreferenced block idles in the pool until it is the least recently used, and then its entry
// goes. Bounded by the pool. Owned by the engine thread; MatchedBlocks comes from any.
//
// A request can find out by its timing whether its prompt's beginning was asked for before with the
// same salt.
class PrefixCache {
 public:
  // Hears of the pool's reclaimed blocks from now on; `pool` must outlive the cache.
  explicit PrefixCache(BlockPool* pool);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Blocks of the longest run of hashes, from the first on, that are here.
  int64_t MatchedBlocks(absl::Span<const PrefixHash> hashes) const;
  // Appends the matched blocks from the table's end on, shared, up to `blocks` in all.
  void Attach(absl::Span<const PrefixHash> hashes, size_t blocks, BlockTable* table);
  // Keeps the first `blocks` blocks of a table, which hold what the hashes say; of two that hold the same,
  // the first. `stored` hears the indexes of those that were not here.
  void Insert(
      absl::Span<const PrefixHash> hashes, absl::Span<const BlockId> blocks,
      absl::FunctionRef<void(size_t index)> stored = [](size_t) {});

  // Hears of removals from now on, and must live as long as the cache is used; from any thread, once.
  void Watch(PrefixWatcher* watcher) { watcher_.store(watcher); }
  PrefixWatcher* watcher() const { return watcher_.load(); }

  int64_t entries() const;

 private:
  void Forget(BlockId id);

  BlockPool* const pool_;
  std::atomic<PrefixWatcher*> watcher_{nullptr};
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<PrefixHash, BlockId> blocks_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<BlockId, PrefixHash> hashes_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
