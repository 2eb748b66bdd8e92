#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/store/chunk_key.h"
#include "server/store/store_index.h"
#include "server/store/stored_frames.h"

namespace aludel {

// How far into a prompt its chunks were found or stored.
struct StorePosition {
  ChunkKey key = {};        // of the chunk that ends here
  int64_t tokens = 0;       // of the prompt, from its start
  uint64_t generation = 0;  // of the store when the prompt was first looked up
};

// A chunk that was found, and the lease on its frames.
struct StoredChunk {
  StorePosition end;
  StoredFrames frames;
};

// Frames of prompts that were encoded here, so that the same prefix, asked for in the same format by whichever consumer,
// is sent again without a forward pass. The unit is a chunk: the tokens that one step of the engine encoded, with the
// frames of all their layers, found by its ChunkKey. Bounded in bytes; the chunk that was used least recently goes
// first, and no chunk before those behind it. Thread-safe; nothing here waits but for a lock.
//
// A request can find out by its timing whether its prompt was asked for before with the same salt; two salts share
// nothing.
class PrefixStore {
 public:
  struct Options {
    std::string producer;     // see RootKey
    size_t memory_bytes = 0;  // 0: keeps nothing
  };

  explicit PrefixStore(Options options) : options_(std::move(options)) {}

  // The start of a prompt in this format, of this tenant.
  StorePosition Begin(const CodecSpec& codec, absl::string_view salt) const;
  // The longest run of chunks from `at` on that the prompt has, none of them added longer ago than `max_age`; moves
  // `at` to its end.
  std::vector<StoredChunk> Find(absl::Span<const int32_t> prompt, absl::Duration max_age, StorePosition* at);
  // Stores what an encoder made of prompt tokens [at->tokens, end), and moves `at` there. False where nothing is kept,
  // nor will be of what follows: the store was cleared since the prompt was looked up, or the chunk in front is gone.
  bool Put(absl::Span<const int32_t> prompt, int64_t end, std::vector<StoredFrame> frames, StorePosition* at);
  // Whether Put could ever keep anything, and the largest chunk that it keeps.
  bool enabled() const { return options_.memory_bytes > 0; }
  size_t max_chunk_bytes() const { return options_.memory_bytes; }

  // Counts a look-up by how much of the prompt came from here in the end.
  void CountLookup(int64_t found_tokens, int64_t prompt_tokens);

  // Drops all chunks; what was looked up before is not stored any more. Frames that are leased stay.
  void Clear();

  struct Stats {
    uint64_t hits = 0;          // look-ups that found the whole prompt
    uint64_t partial_hits = 0;  // that found some of it
    uint64_t misses = 0;
    uint64_t hit_tokens = 0;  // over all look-ups
    uint64_t evictions = 0;
    size_t bytes = 0;
    size_t entries = 0;
  };
  Stats stats() const;

 private:
  using Node = StoreIndex::Node;

  void KeepInMemory(Node* node, StoredFrames frames, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropFromMemory(Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Evict() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  StoreIndex index_ ABSL_GUARDED_BY(mutex_);
  StoreIndex::Order order_ ABSL_GUARDED_BY(mutex_);  // of the memory tier, most recently used first
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;  // times that it was cleared
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
