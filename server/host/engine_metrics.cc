#include "server/host/engine_metrics.h"

#include <cstdint>
#include <utility>

#include "kernels/device_health.h"

namespace aludel {

EngineMetrics::EngineMetrics(Metrics* metrics)
    : requests_(metrics),
      cache_usage_(metrics->Gauge("aludel_kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.")),
      kv_blocks_(metrics->Gauge("aludel_kv_blocks", "KV blocks by state: total, used, cached, reserved.")),
      events_(metrics->Counter("aludel_engine_events_total", "What the engine counted, by event.")),
      prefix_queries_(metrics->Counter("aludel_prefix_cache_queries_total",
                                       "Prompt tokens looked up in the prefix cache.")),
      prefix_hits_(
          metrics->Counter("aludel_prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")),
      preemptions_(metrics->Counter("aludel_num_preemptions_total",
                                    "Sequences that gave up blocks and computed them again.")) {}

void EngineMetrics::Set(const std::string& model, const EngineStats& stats) const {
  const MetricLabels labels = {{"model", model}};
  requests_.SetRequests(model, stats.running, stats.waiting);
  cache_usage_.Set(labels, stats.kv_blocks_total == 0
                               ? 0
                               : static_cast<double>(stats.kv_blocks_used) / stats.kv_blocks_total);
  const std::pair<const char*, int64_t> blocks[] = {{"total", stats.kv_blocks_total},
                                                    {"used", stats.kv_blocks_used},
                                                    {"cached", stats.kv_blocks_cached},
                                                    {"reserved", stats.kv_blocks_reserved}};
  for (const auto& [state, count] : blocks) {
    kv_blocks_.Set({{"model", model}, {"state", state}}, static_cast<double>(count));
  }
  const std::pair<const char*, uint64_t> events[] = {{"step", stats.steps},
                                                     {"prompt_token", stats.prompt_tokens},
                                                     {"generated_token", stats.generated_tokens},
                                                     {"frame_applied", stats.frames_applied},
                                                     {"frame_rejected", stats.frames_rejected},
                                                     {"fallback", stats.fallbacks},
                                                     {"hedge_started", stats.hedges_started},
                                                     {"hedge_won", stats.hedges_won},
                                                     {"hedge_lost", stats.hedges_lost},
                                                     {"hedge_refused", stats.hedges_refused},
                                                     {"graph_eager", stats.replays.eager},
                                                     {"graph_captured", stats.replays.captured},
                                                     {"graph_replayed", stats.replays.replayed},
                                                     {"graph_changed", stats.replays.changed},
                                                     {"gemm_without_heuristic", SlowProductsMet().shapes},
                                                     {"gemm_timed", ProductsTimed().shapes}};
  for (const auto& [event, count] : events) {
    events_.Raise({{"model", model}, {"event", event}}, static_cast<double>(count));
  }
  prefix_queries_.Raise(labels, static_cast<double>(stats.prefix_queries));
  prefix_hits_.Raise(labels, static_cast<double>(stats.prefix_hits));
  preemptions_.Raise(labels, static_cast<double>(stats.preemptions));
}

}  // namespace aludel
