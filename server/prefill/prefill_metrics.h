#pragma once

#include <cstdint>

#include "absl/synchronization/mutex.h"
#include "runtime/codec/video/video_coder.h"
#include "server/handoff/handoff_metrics.h"
#include "server/observe/metrics.h"

namespace aludel {

// What a run waits for before it can go on encoding.
enum class Stall : uint8_t {
  kReceiver,  // to grant more credit
  kLink,      // to take what was sent
  kArena      // to have a window for the run
};

// What the runs of a prefill server export. Thread-safe.
class PrefillMetrics {
 public:
  explicit PrefillMetrics(Metrics* metrics);

  const HandoffMetrics handoffs;

  void CountStall(Stall stall) const;
  // `failures` is a snapshot of those of this process. The log tells of the first.
  void SetVideoFailures(const VideoFailures& failures) const;

 private:
  const CounterFamily stalls_;
  const CounterFamily video_failures_;
  mutable absl::Mutex mutex_;
  mutable int64_t video_failures_seen_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
