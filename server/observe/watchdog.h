#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/process/timer.h"

namespace aludel {

// Checks once a second that the threads of a server still run, so that a wedged one is found by readiness and
// peers, and not by clients. Each check says for how long its thread has been silent. While all of them run, the service
// manager is told WATCHDOG=1 at each look (systemd's WatchdogSec). Thread-safe.
class Watchdog {
 public:
  struct Check {
    std::string what;  // "the engine"
    std::function<absl::Duration()> silence;
  };

  // Checks are called on the timer's thread. `timer` must outlive the watchdog.
  Watchdog(std::vector<Check> checks, absl::Duration limit, Timer* timer);
  ~Watchdog();
  // No check is called any more when this returns. Idempotent.
  void Stop();

  // Ok, or Unavailable and which thread has been silent for how long; the timer's own counts too.
  absl::Status status() const;

 private:
  void Look();

  const std::vector<Check> checks_;
  const absl::Duration limit_;
  Timer* const timer_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  absl::Time looked_ ABSL_GUARDED_BY(mutex_);
  Timer::Id next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
