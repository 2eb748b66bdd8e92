#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/decode/plan/prefill_pool.h"
#include "server/process/timer.h"
#include "server/rpc/cache_events/cache_feeds.h"

namespace aludel {

// What the prefill servers of a pool say that their prefix stores hold: one stream each, while they are usable. What one has
// said is forgotten when its stream ends. Thread-safe.
class KnownStores {
 public:
  // Of one server, one that has more is not known; and of all.
  static constexpr size_t kMaxChunks = 1 << 20;
  static constexpr size_t kMaxAllChunks = 4 * kMaxChunks;
  static constexpr absl::Duration kTendInterval = absl::Milliseconds(200);

  // Both must outlive it.
  KnownStores(const PrefillPool* pool, Timer* timer);
  ~KnownStores();

  // Tokens of the prompt, from its start, that the server has frames of in this format and for this salt; nothing where it
  // has not said what it has. Hashes what it finds.
  std::optional<int64_t> StoredTokens(const std::string& target, const CodecSpec& codec,
                                      absl::string_view salt, absl::Span<const int32_t> prompt) const;

  // Servers that have said what they have.
  int known() const;

 private:
  class Source;

  void Tend();

  const PrefillPool* const pool_;
  Timer* const timer_;
  CacheFeeds feeds_{{.server_keys = kMaxChunks, .all_keys = kMaxAllChunks}};  // the timer's
  mutable absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Source>> sources_ ABSL_GUARDED_BY(mutex_);
  Timer::Id tending_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
