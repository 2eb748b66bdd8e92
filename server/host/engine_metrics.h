#pragma once

#include <string>

#include "runtime/engine/engine_stats.h"
#include "server/observe/metrics.h"
#include "server/observe/request_metrics.h"

namespace aludel {

// Snapshots of what an engine counts, under the model's name.
class EngineMetrics {
 public:
  explicit EngineMetrics(Metrics* metrics);

  void Set(const std::string& model, const EngineStats& stats) const;

 private:
  const RequestMetrics requests_;
  const GaugeFamily cache_usage_;
  const GaugeFamily kv_blocks_;
  const CounterFamily events_;
  const CounterFamily prefix_queries_;
  const CounterFamily prefix_hits_;
  const CounterFamily preemptions_;
};

}  // namespace aludel
