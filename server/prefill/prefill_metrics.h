#pragma once

#include <cstdint>

#include "server/handoff/handoff_metrics.h"
#include "server/observe/metrics.h"
#include "server/store/store_stats.h"

namespace aludel {

// What a run waits for before it can go on encoding.
enum class Stall : uint8_t {
  kReceiver,  // to grant more credit
  kLink,      // to take what was sent
  kArena      // to have a window for the run
};

// What the runs of a prefill server export, and snapshots of its prefix store. Thread-safe.
class PrefillMetrics {
 public:
  explicit PrefillMetrics(Metrics* metrics);

  const HandoffMetrics handoffs;

  void CountStall(Stall stall) const;
  void SetStore(const StoreStats& stats) const;

 private:
  void SetRemote(const RemoteStats& stats) const;

  const CounterFamily stalls_;
  const CounterFamily store_lookups_;
  const CounterFamily store_hit_tokens_;
  const CounterFamily store_evictions_;
  const CounterFamily store_over_quota_;
  const CounterFamily store_cuts_;
  const GaugeFamily store_placement_gap_;
  const GaugeFamily store_bytes_;
  const GaugeFamily store_entries_;
  const GaugeFamily store_open_;
  const GaugeFamily store_queued_bytes_;
  const CounterFamily store_written_bytes_;
  const CounterFamily store_loads_;
  const CounterFamily store_load_seconds_;
  const CounterFamily store_failures_;
  const CounterFamily store_workflow_;
  const CounterFamily remote_written_bytes_;
  const CounterFamily remote_loads_;
  const CounterFamily remote_load_seconds_;
  const GaugeFamily remote_queued_bytes_;
  const CounterFamily remote_failures_;
};

}  // namespace aludel
