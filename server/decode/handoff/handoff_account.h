#pragma once

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/decode/handoff/handoff_report.h"

namespace aludel {

// Keeps what a handoff comes to while it goes on. Thread-safe.
class HandoffAccount {
 public:
  using Listener = std::function<void(const HandoffReport&)>;

  void Begin(absl::Time now);
  // The number of the next attempt, from 1. It asks a prefill server, or this server's own store.
  int BeginAttempt(bool asks_server = true);
  // The prefill server's own times, and how many tokens it had from before (HandoffReport). False, and not noted, where that
  // attempt is not the last.
  bool Computed(int attempt, const ProducerSeconds& producer, int64_t cached_tokens = 0,
                int64_t stored_tokens = 0);
  void Closed(const TicketUsage& usage, absl::Time now);
  // Calls `then` once with the prefill server's own times, which may come after the last frame: at once, in a later
  // Computed(), or never.
  void WhenComputed(Listener then);
  HandoffReport report() const;

 private:
  mutable absl::Mutex mutex_;
  HandoffReport report_ ABSL_GUARDED_BY(mutex_);
  Listener when_computed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
