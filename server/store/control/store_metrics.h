#pragma once

#include "server/observe/metrics.h"
#include "server/store/store_stats.h"

namespace aludel {

// What a server exports of its prefix store: the same families of a prefill server's and of a decode server's, whose
// scrapes tell them apart. Thread-safe.
class StoreMetrics {
 public:
  // `metrics` must outlive it.
  explicit StoreMetrics(Metrics* metrics);

  void Set(const StoreStats& stats) const;

 private:
  void SetRemote(const RemoteStats& stats) const;

  const CounterFamily lookups_;
  const CounterFamily hits_;
  const CounterFamily hit_tokens_;
  const CounterFamily evictions_;
  const CounterFamily over_quota_;
  const CounterFamily cuts_;
  const CounterFamily rejects_;
  const CounterFamily saved_seconds_;
  const GaugeFamily placement_gap_;
  const GaugeFamily bytes_;
  const GaugeFamily entries_;
  const GaugeFamily open_;
  const GaugeFamily queued_bytes_;
  const CounterFamily written_bytes_;
  const CounterFamily loads_;
  const CounterFamily load_seconds_;
  const CounterFamily rewrites_;
  const CounterFamily seldom_;
  const CounterFamily findings_;
  const CounterFamily failures_;
  const CounterFamily workflow_;
  const CounterFamily remote_written_bytes_;
  const CounterFamily remote_loads_;
  const CounterFamily remote_load_seconds_;
  const GaugeFamily remote_queued_bytes_;
  const CounterFamily remote_failures_;
};

}  // namespace aludel
