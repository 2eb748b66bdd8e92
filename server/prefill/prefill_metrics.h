#pragma once

#include <cstdint>

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

 private:
  const CounterFamily stalls_;
};

}  // namespace aludel
