#include "server/decode/load/load_reporter.h"

#include <algorithm>

namespace aludel {
namespace {

// The cost of one token is told from a prompt of so many, where a step's own time counts little.
constexpr int64_t kTypicalTokens = 1024;

}  // namespace

double LoadReporter::WaitingSeconds() const {
  double wait = source_.costs->LocalWait();
  if (wait <= 0 || !source_.may_hand_over) return wait;
  // The planner takes the sooner of the two ways.
  for (const PlanTarget& target : source_.prefill_pool->Snapshot()) {
    if (!target.ready) continue;
    if (target.waiting_tokens == 0) return 0;
    if (target.tokens_per_second > 0) {
      wait = std::min(wait, static_cast<double>(target.waiting_tokens) / target.tokens_per_second);
    }
  }
  return wait;
}

v1::LoadReport LoadReporter::Report() const {
  const EngineStats stats = source_.model->engine().stats();
  const EngineOptions& options = source_.model->engine().options();
  v1::LoadReport report;
  report.set_epoch(source_.epoch);
  report.set_age_seconds(absl::ToDoubleSeconds(MonotonicNow() - began_));
  report.set_waiting_seconds(WaitingSeconds());
  report.set_running(static_cast<uint32_t>(std::max<int64_t>(0, stats.running)));
  report.set_waiting(static_cast<uint32_t>(std::max<int64_t>(0, stats.waiting)));
  report.set_places(static_cast<uint32_t>(options.max_num_seqs));
  const int64_t free_blocks =
      stats.kv_blocks_total - std::max(stats.kv_blocks_used, stats.kv_blocks_reserved);
  report.set_free_tokens(static_cast<uint64_t>(std::max<int64_t>(0, free_blocks) * options.block_tokens));
  report.set_cache_tokens(
      options.prefix_cache ? static_cast<uint64_t>(stats.kv_blocks_total * options.block_tokens) : 0);
  report.set_cache_resets(resets_.load());
  report.set_prefill_seconds_per_token(source_.costs->LocalCompute(kTypicalTokens).value_or(0) /
                                       kTypicalTokens);
  return report;
}

void LoadReporter::CacheWasReset() {
  prefixes_.Clear();
  resets_.fetch_add(1);
}

}  // namespace aludel
