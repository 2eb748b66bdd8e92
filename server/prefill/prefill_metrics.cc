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
      store_over_quota_(metrics->Counter("aludel_store_over_quota_total",
                                         "Chunks that went for their tenant's quota, by tier.")),
      store_cuts_(metrics->Counter("aludel_store_cuts_total",
                                   "Chunks in memory that were cut to fewer planes, for room.")),
      store_placement_gap_(metrics->Gauge(
          "aludel_store_placement_gap",
          "Share of what memory is worth that its placement may fall short of the best one by, at most.")),
      store_bytes_(metrics->Gauge("aludel_store_bytes", "Bytes of stored chunks, by tier.")),
      store_entries_(metrics->Gauge("aludel_store_entries", "Stored chunks, by tier.")),
      store_open_(metrics->Gauge("aludel_store_open", "1 for a tier that is in use, 0 for one that is not.")),
      store_queued_bytes_(
          metrics->Gauge("aludel_store_queued_bytes", "Chunks that wait to be written to disk.")),
      store_written_bytes_(metrics->Counter("aludel_store_written_bytes_total", "Written to disk.")),
      store_loads_(metrics->Counter("aludel_store_loads_total", "Chunks read from disk.")),
      store_load_seconds_(
          metrics->Counter("aludel_store_load_seconds_total", "Time that reading them took.")),
      store_failures_(metrics->Counter("aludel_store_failures_total",
                                       "Chunks that could not be written or read, by reason.")),
      store_workflow_(metrics->Counter("aludel_store_workflow_chunks_total",
                                       "Chunks of agents to come, by what became of a hint.")),
      remote_written_bytes_(
          metrics->Counter("aludel_store_remote_written_bytes_total", "Written to the remote.")),
      remote_loads_(metrics->Counter("aludel_store_remote_loads_total", "Chunks read from the remote.")),
      remote_load_seconds_(metrics->Counter("aludel_store_remote_load_seconds_total",
                                            "Time that reading them took, without waiting for a thread.")),
      remote_queued_bytes_(metrics->Gauge("aludel_store_remote_queued_bytes",
                                          "Chunks that wait to be written to the remote.")),
      remote_failures_(metrics->Counter("aludel_store_remote_failures_total",
                                        "What the remote was asked in vain, by reason.")) {}

void PrefillMetrics::CountStall(Stall stall) const { stalls_.Add({{"for", Name(stall)}}); }

void PrefillMetrics::SetStore(const StoreStats& stats) const {
  const std::pair<const char*, uint64_t> lookups[] = {
      {"hit", stats.hits}, {"partial", stats.partial_hits}, {"miss", stats.misses}};
  for (const auto& [result, count] : lookups) {
    store_lookups_.Raise({{"result", result}}, static_cast<double>(count));
  }
  const std::pair<const char*, const TierStats*> tiers[] = {{"memory", &stats.memory}, {"disk", &stats.disk}};
  for (const auto& [name, tier] : tiers) {
    const MetricLabels labels = {{"tier", name}};
    store_hit_tokens_.Raise(labels, static_cast<double>(tier->hit_tokens));
    store_evictions_.Raise(labels, static_cast<double>(tier->evictions));
    store_over_quota_.Raise(labels, static_cast<double>(tier->over_quota));
    store_bytes_.Set(labels, static_cast<double>(tier->bytes));
    store_entries_.Set(labels, static_cast<double>(tier->entries));
    if (tier->configured) store_open_.Set(labels, tier->open ? 1 : 0);
  }
  store_cuts_.Raise({}, static_cast<double>(stats.cuts));
  store_placement_gap_.Set({}, stats.placement_gap);
  store_queued_bytes_.Set({}, static_cast<double>(stats.queued_bytes));
  store_written_bytes_.Raise({}, static_cast<double>(stats.written_bytes));
  store_loads_.Raise({}, static_cast<double>(stats.loads));
  store_load_seconds_.Raise({}, stats.load_seconds);
  const std::pair<const char*, uint64_t> failures[] = {
      {"queue_full", stats.queue_full},    {"reads_full", stats.reads_full},
      {"read_late", stats.reads_late},     {"no_room", stats.no_room},
      {"write_error", stats.write_errors}, {"read_error", stats.read_errors},
      {"damaged", stats.damaged}};
  for (const auto& [reason, count] : failures) {
    store_failures_.Raise({{"reason", reason}}, static_cast<double>(count));
  }
  const std::pair<const char*, uint64_t> expected[] = {{"kept", stats.expected.kept},
                                                       {"loaded", stats.expected.loaded},
                                                       {"no_room", stats.expected.no_room},
                                                       {"lost", stats.expected.lost}};
  for (const auto& [result, count] : expected) {
    store_workflow_.Raise({{"result", result}}, static_cast<double>(count));
  }
  if (stats.remote.configured) SetRemote(stats.remote);
}

void PrefillMetrics::SetRemote(const RemoteStats& stats) const {
  const MetricLabels labels = {{"tier", "remote"}};
  store_hit_tokens_.Raise(labels, static_cast<double>(stats.hit_tokens));
  store_open_.Set(labels, stats.open ? 1 : 0);
  remote_written_bytes_.Raise({}, static_cast<double>(stats.written_bytes));
  remote_loads_.Raise({}, static_cast<double>(stats.loads));
  remote_load_seconds_.Raise({}, stats.load_seconds);
  remote_queued_bytes_.Set({}, static_cast<double>(stats.queued_bytes));
  const std::pair<const char*, uint64_t> failures[] = {
      {"queue_full", stats.queue_full}, {"reads_full", stats.reads_full}, {"late", stats.late},
      {"refused", stats.refused},       {"error", stats.errors},          {"gone", stats.gone},
      {"damaged", stats.damaged}};
  for (const auto& [reason, count] : failures) {
    remote_failures_.Raise({{"reason", reason}}, static_cast<double>(count));
  }
}

}  // namespace aludel
