#pragma once

#include <cstdint>
#include <string>

#include "server/handoff/frame_arena.h"
#include "server/observe/metrics.h"
#include "transport/transport_stats.h"

namespace aludel {

// What both ends of a handoff export of it. Thread-safe.
class HandoffMetrics {
 public:
  explicit HandoffMetrics(Metrics* metrics);

  // `direction` is "sent" or "received"; bytes include frame headers.
  void CountFrame(const std::string& direction, const std::string& format, uint64_t bytes) const;
  // Makes the series of such handoffs start at 0, so that an alert sees the first one.
  void ExpectHandoff(const std::string& direction, const std::string& outcome) const;
  void CountHandoff(const std::string& direction, const std::string& outcome, double seconds) const;

 private:
  const CounterFamily frames_;
  const CounterFamily frame_bytes_;
  const HistogramFamily handoff_time_;
};

// Snapshots of the data plane of one server: its transport, its frame memory, its open tickets.
class DataPlaneMetrics {
 public:
  explicit DataPlaneMetrics(Metrics* metrics);

  void Set(const TransportStats& stats, const FrameArena& arena, int64_t tickets_open) const;

 private:
  const CounterFamily messages_;
  const CounterFamily bytes_;
  const GaugeFamily channels_;
  const GaugeFamily arena_;
  const GaugeFamily tickets_open_;
};

}  // namespace aludel
