#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "aludel/v1/load.pb.h"
#include "server/rpc/cache_events/prompt_keys.h"

namespace aludel {

// What a watcher of a cache makes of its events: which are to be applied, and when what was heard does not hold together
// and has to be heard anew. Holds the pieces of a snapshot until it is whole, and changes until Drop. A peer's bytes may be
// anything. Not thread-safe.
class CacheMirror {
 public:
  // `max_keys`: of a snapshot.
  explicit CacheMirror(size_t max_keys) : max_keys_(max_keys) {}

  enum class Heard {
    kNothing,   // a piece of a snapshot, or changes that were heard before
    kSnapshot,  // changes() are all that the cache holds
    kChanges,   // changes() go on from there
    kTooMany,   // it holds more than max_keys
    kBroken,  // a gap, another process, or nonsense: what was heard holds no more, and nothing will before a snapshot
  };
  Heard Hear(const v1::CacheEvent& event);
  // Of the last Hear.
  absl::Span<const KeyChange> changes() const { return changes_; }
  // They are not needed any more, and take no memory from now on.
  void Drop() { changes_ = std::vector<KeyChange>(); }
  size_t held() const { return std::max(pieces_.capacity(), changes_.capacity()); }  // keys in memory
  uint64_t epoch() const { return epoch_; }                                          // of the last snapshot
  int64_t key_tokens() const { return key_tokens_; }         // of the last snapshot; at least 1
  const std::string& producer() const { return producer_; }  // likewise
  bool current() const { return state_ == State::kCurrent; }

 private:
  enum class State { kNothing, kInSnapshot, kCurrent };
  Heard HearPiece(const v1::CacheEvent& event);
  Heard HearChanges(const v1::CacheEvent& event);
  Heard Fail(Heard why);

  const size_t max_keys_;
  State state_ = State::kNothing;
  uint64_t epoch_ = 0;
  uint64_t next_ = 0;  // sequence
  uint32_t piece_ = 0;
  int64_t key_tokens_ = 1;
  std::string producer_;
  std::vector<KeyChange> pieces_;
  std::vector<KeyChange> changes_;
};

}  // namespace aludel
