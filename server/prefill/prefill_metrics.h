#pragma once

#include <cstdint>

#include "server/handoff/handoff_metrics.h"
#include "server/observe/metrics.h"
#include "server/prefill/frame_cache.h"

namespace aludel {

// What a run waits for before it can go on encoding.
enum class Stall : uint8_t {
  kReceiver,  // to grant more credit
  kLink,      // to take what was sent
  kArena      // to have a window for the run
};

// What the runs of a prefill server export, and snapshots of its frame cache. Thread-safe.
class PrefillMetrics {
 public:
  explicit PrefillMetrics(Metrics* metrics);

  const HandoffMetrics handoffs;

  void CountStall(Stall stall) const;
  void SetFrameCache(const FrameCache::Stats& stats) const;

 private:
  const CounterFamily stalls_;
  const CounterFamily frame_cache_lookups_;
  const CounterFamily frame_cache_tokens_;
  const CounterFamily frame_cache_evictions_;
  const GaugeFamily frame_cache_bytes_;
};

}  // namespace aludel
