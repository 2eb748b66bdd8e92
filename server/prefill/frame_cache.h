#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"

namespace aludel {

// One frame without its header, which names the ticket.
struct CachedFrame {
  FrameCoverage coverage;
  std::vector<uint8_t> payload;
};

// Frames of prompts that were encoded here, so that the same prefix, asked for in the same format by
// whichever consumer, is sent again without a forward pass. The unit is a chunk: the tokens that one step of
// the engine encoded, with the frames of all their layers. A chunk is found by the tenant's salt and the
// encoder (format and artifact hash), by everything before it (a SHA-256 chain over the prompt's chunks) and
// by its own token ids, which are compared one by one. Bounded in bytes; the chunk that was used least
// recently goes first, and no chunk before those behind it. Thread-safe.
//
// A request can find out by its timing whether its prompt was asked for before with the same salt.
class FrameCache {
 public:
  using Frames = std::shared_ptr<const std::vector<CachedFrame>>;

  // `max_bytes` 0 keeps nothing.
  explicit FrameCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  struct Match {
    int64_t tokens = 0;          // of the prompt, from its start
    std::vector<Frames> chunks;  // their frames, in order
  };
  // The longest run of chunks that the prompt begins with, none of them added longer ago than `max_age`.
  Match Find(const CodecSpec& codec, absl::string_view salt, absl::Span<const int32_t> prompt,
             absl::Duration max_age = absl::InfiniteDuration());

  // Adds what an encoder made of tokens [begin, prompt.size()), [0, begin) being matched by Find before. From
  // the first chunk whose frames do not make a whole, nothing is kept.
  void Insert(const CodecSpec& codec, absl::string_view salt, absl::Span<const int32_t> prompt, int64_t begin,
              std::vector<CachedFrame> frames);

  // Drops all chunks. Frames that a Match holds stay with it.
  void Clear();

  size_t max_bytes() const { return max_bytes_; }

  struct Stats {
    uint64_t hits = 0;          // look-ups that found the whole prompt
    uint64_t partial_hits = 0;  // that found some of it
    uint64_t misses = 0;
    uint64_t tokens = 0;  // found, over all look-ups
    uint64_t evictions = 0;
    size_t bytes = 0;
    size_t chunks = 0;
  };
  Stats stats() const;

 private:
  using Hash = std::array<uint8_t, 32>;
  struct Chunk {
    Hash before;  // of the salt, the encoder and everything in front
    std::vector<int32_t> tokens;
    Frames frames;
    size_t bytes = 0;
    absl::Time added;  // or made again, which gives the same frames
  };
  using Order = std::list<Chunk>;  // most recently used first

  static Hash Root(const CodecSpec& codec, absl::string_view salt);
  static Hash Extend(const Hash& before, absl::Span<const int32_t> tokens);
  // The longest chunk of that time or later that follows `before` and that `rest` begins with,
  // or chunks_.end().
  Order::iterator FindChunk(const Hash& before, absl::Span<const int32_t> rest, absl::Time since)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Evict() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_bytes_;
  mutable absl::Mutex mutex_;
  Order chunks_ ABSL_GUARDED_BY(mutex_);
  std::multimap<Hash, Order::iterator> by_before_ ABSL_GUARDED_BY(mutex_);
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
