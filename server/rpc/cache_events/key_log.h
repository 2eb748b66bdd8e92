#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "aludel/v1/load.pb.h"
#include "server/rpc/cache_events/prompt_keys.h"

namespace aludel {

// What a cache holds and how that came, for readers at their own pace: each reads a snapshot first and then the changes.
// The last changes are kept once for all readers, so that a slow one costs nothing: one that was left behind them reads a
// snapshot again. Readers that are in the midst of one share it, where the changes since are all kept: a cache is copied, which
// is done under the log's lock, once in max_changes changes. Thread-safe. Its memory is bounded by what the cache holds,
// kMaxChanges, and as many snapshots as there are readers, each of which fell behind in the midst of another.
class KeyLog {
 public:
  static constexpr size_t kMaxChanges = 65536;   // 1 MB
  static constexpr size_t kMaxEventKeys = 8192;  // 72 kB

  struct Options {
    uint64_t epoch = 0;
    int64_t key_tokens = kKeyTokens;  // keys are of multiples of so many tokens
    std::string producer = {};        // as CacheEvent has it
    size_t max_changes = kMaxChanges;
    size_t max_event_keys = kMaxEventKeys;
  };
  explicit KeyLog(const Options& options) : options_(options) {}
  // `on_change` runs under the log's lock at the first change, and at the first one after each OnRead; it must be short.
  void OnChange(std::function<void()> on_change) {
    absl::MutexLock lock(&mutex_);
    on_change_ = std::move(on_change);
  }

  // A key that was stored twice is there until it was removed as often. Removed and never stored: nothing.
  void Add(const KeyChange& change);
  void Clear();

  // One reader's place. Used by one thread at a time.
  class Reader {
    friend class KeyLog;
    bool begun_ = false;
    uint64_t next_ = 0;
    std::shared_ptr<const std::vector<KeyChange>> snapshot_;
    size_t read_ = 0;  // of it
    uint32_t piece_ = 0;
  };
  // What comes next, into an event that is cleared first. False: nothing yet.
  bool Read(Reader* reader, v1::CacheEvent* event) const;
  // Readers look again from now on: the next change is told.
  void OnRead();

  size_t keys() const;

 private:
  struct Held {
    uint32_t times = 0;
    uint8_t kind = 0;
  };
  void Append(const KeyChange& change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  // Of all that is held after so many changes; kept by its readers.
  struct Snapshot {
    std::weak_ptr<const std::vector<KeyChange>> keys;
    uint64_t end = 0;
  };
  void BeginSnapshot(Reader* reader) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  mutable Snapshot snapshot_ ABSL_GUARDED_BY(mutex_);  // the last one
  std::function<void()> on_change_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Held> held_ ABSL_GUARDED_BY(mutex_);
  std::deque<KeyChange> changes_ ABSL_GUARDED_BY(mutex_);  // the last ones
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;               // changes that there ever were
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
