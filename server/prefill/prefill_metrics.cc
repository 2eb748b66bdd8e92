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
      frame_cache_lookups_(
          metrics->Counter("aludel_frame_cache_lookups_total", "Prompts looked up, by result.")),
      frame_cache_tokens_(
          metrics->Counter("aludel_frame_cache_tokens_total", "Prompt tokens whose frames were cached.")),
      frame_cache_evictions_(
          metrics->Counter("aludel_frame_cache_evictions_total", "Chunks that went to make room.")),
      frame_cache_bytes_(metrics->Gauge("aludel_frame_cache_bytes", "Memory of cached frames.")) {}

void PrefillMetrics::CountStall(Stall stall) const { stalls_.Add({{"for", Name(stall)}}); }

void PrefillMetrics::SetFrameCache(const FrameCache::Stats& stats) const {
  const std::pair<const char*, uint64_t> lookups[] = {
      {"hit", stats.hits}, {"partial", stats.partial_hits}, {"miss", stats.misses}};
  for (const auto& [result, count] : lookups) {
    frame_cache_lookups_.Raise({{"result", result}}, static_cast<double>(count));
  }
  frame_cache_tokens_.Raise({}, static_cast<double>(stats.tokens));
  frame_cache_evictions_.Raise({}, static_cast<double>(stats.evictions));
  frame_cache_bytes_.Set({}, static_cast<double>(stats.bytes));
}

}  // namespace aludel
