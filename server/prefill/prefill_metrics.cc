#include "server/prefill/prefill_metrics.h"

namespace aludel {
namespace {

constexpr const char* Name(Stall stall) {
  switch (stall) {
    case Stall::kReceiver:
      return "receiver";
    case Stall::kLink:
      return "link";
    case Stall::kArena:
      return "arena";
  }
  return "unknown";
}

}  // namespace

PrefillMetrics::PrefillMetrics(Metrics* metrics)
    : handoffs(metrics),
      stalls_(metrics->Counter("aludel_handoff_stalls_total",
                               "Times that a run could not go on encoding, by what it waited for.")) {}

void PrefillMetrics::CountStall(Stall stall) const { stalls_.Add({{"for", Name(stall)}}); }

}  // namespace aludel
