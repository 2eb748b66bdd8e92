#include "server/prefill/prefill_metrics.h"

#include <utility>

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
                               "Times that a run could not go on encoding, by what it waited for.")),
      store_lookups_(metrics->Counter("aludel_store_lookups_total", "Prompts looked up, by result.")),
      store_hit_tokens_(metrics->Counter("aludel_store_hit_tokens_total",
                                         "Prompt tokens whose frames were stored, by tier.")),
      store_evictions_(
          metrics->Counter("aludel_store_evictions_total", "Chunks that went to make room, by tier.")),
      store_bytes_(metrics->Gauge("aludel_store_bytes", "Bytes of stored chunks, by tier.")),
      store_entries_(metrics->Gauge("aludel_store_entries", "Stored chunks, by tier.")) {}

void PrefillMetrics::CountStall(Stall stall) const { stalls_.Add({{"for", Name(stall)}}); }

void PrefillMetrics::SetStore(const PrefixStore::Stats& stats) const {
  const std::pair<const char*, uint64_t> lookups[] = {
      {"hit", stats.hits}, {"partial", stats.partial_hits}, {"miss", stats.misses}};
  for (const auto& [result, count] : lookups) {
    store_lookups_.Raise({{"result", result}}, static_cast<double>(count));
  }
  const MetricLabels memory = {{"tier", "memory"}};
  store_hit_tokens_.Raise(memory, static_cast<double>(stats.hit_tokens));
  store_evictions_.Raise(memory, static_cast<double>(stats.evictions));
  store_bytes_.Set(memory, static_cast<double>(stats.bytes));
  store_entries_.Set(memory, static_cast<double>(stats.entries));
}

}  // namespace aludel
