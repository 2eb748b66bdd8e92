#include "server/store/control/store_metrics.h"

#include <cstdint>
#include <utility>

namespace aludel {

StoreMetrics::StoreMetrics(Metrics* metrics)
    : lookups_(metrics->Counter("aludel_store_lookups_total", "Prompts looked up, by result.")),
      hits_(metrics->Counter("aludel_store_hits_total", "Look-ups that took something from a tier.")),
      hit_tokens_(metrics->Counter("aludel_store_hit_tokens_total",
                                   "Prompt tokens whose frames were stored, by tier.")),
      evictions_(metrics->Counter("aludel_store_evictions_total", "Chunks that went to make room, by tier.")),
      over_quota_(metrics->Counter("aludel_store_over_quota_total",
                                   "Chunks that went for their tenant's quota, by tier.")),
      cuts_(metrics->Counter("aludel_store_cuts_total",
                             "Chunks in memory that were cut to fewer planes, for room.")),
      rejects_(metrics->Counter("aludel_store_memory_rejects_total",
                                "Chunks that memory did not take, by reason.")),
      saved_seconds_(metrics->Counter("aludel_store_saved_seconds_total",
                                      "Seconds of computing that stored chunks saved, less reading them, as "
                                      "placement expects and as measured; "
                                      "and those lost to reads that took longer than computing.")),
      placement_gap_(metrics->Gauge(
          "aludel_store_placement_gap",
          "Share of what memory is worth that its last demotions took beyond their mark: an estimate.")),
      bytes_(metrics->Gauge("aludel_store_bytes", "Bytes of stored chunks, by tier.")),
      entries_(metrics->Gauge("aludel_store_entries", "Stored chunks, by tier.")),
      open_(metrics->Gauge("aludel_store_open", "1 for a tier that is in use, 0 for one that is not.")),
      queued_bytes_(metrics->Gauge("aludel_store_queued_bytes", "Chunks that wait to be written to disk.")),
      written_bytes_(metrics->Counter("aludel_store_written_bytes_total", "Written to disk.")),
      loads_(metrics->Counter("aludel_store_loads_total", "Chunks read from disk.")),
      load_seconds_(metrics->Counter("aludel_store_load_seconds_total", "Time that reading them took.")),
      rewrites_(metrics->Counter("aludel_store_rewrites_total",
                                 "Chunks of the oldest segment on disk that were written again.")),
      seldom_(metrics->Counter("aludel_store_seldom_total",
                               "Times that a chunk was not written to disk, asked for too seldom.")),
      findings_(metrics->Counter("aludel_store_disk_findings_total",
                                 "What was not as a server leaves it when the disk was opened, by kind.")),
      failures_(metrics->Counter("aludel_store_failures_total",
                                 "Chunks that could not be written or read, by reason.")),
      workflow_(metrics->Counter("aludel_store_workflow_chunks_total",
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

void StoreMetrics::Set(const StoreStats& stats) const {
  const std::pair<const char*, uint64_t> lookups[] = {
      {"hit", stats.hits}, {"partial", stats.partial_hits}, {"miss", stats.misses}};
  for (const auto& [result, count] : lookups) {
    lookups_.Raise({{"result", result}}, static_cast<double>(count));
  }
  const std::pair<const char*, const TierStats*> tiers[] = {{"memory", &stats.memory}, {"disk", &stats.disk}};
  for (const auto& [name, tier] : tiers) {
    const MetricLabels labels = {{"tier", name}};
    hits_.Raise(labels, static_cast<double>(tier->hits));
    hit_tokens_.Raise(labels, static_cast<double>(tier->hit_tokens));
    evictions_.Raise(labels, static_cast<double>(tier->evictions));
    over_quota_.Raise(labels, static_cast<double>(tier->over_quota));
    bytes_.Set(labels, static_cast<double>(tier->bytes));
    entries_.Set(labels, static_cast<double>(tier->entries));
    if (tier->configured) open_.Set(labels, tier->open ? 1 : 0);
  }
  cuts_.Raise({}, static_cast<double>(stats.cuts));
  const std::pair<const char*, uint64_t> rejects[] = {{"too_large", stats.rejects.too_large},
                                                      {"cleared", stats.rejects.cleared},
                                                      {"front_gone", stats.rejects.front_gone},
                                                      {"pinned", stats.rejects.pinned}};
  for (const auto& [reason, count] : rejects) {
    rejects_.Raise({{"reason", reason}}, static_cast<double>(count));
  }
  const std::pair<const char*, double> saved[] = {
      {"expected", stats.saved.expected}, {"measured", stats.saved.measured}, {"lost", stats.saved.lost}};
  for (const auto& [kind, seconds] : saved) saved_seconds_.Raise({{"kind", kind}}, seconds);
  placement_gap_.Set({}, stats.placement_gap);
  queued_bytes_.Set({}, static_cast<double>(stats.queued_bytes));
  written_bytes_.Raise({}, static_cast<double>(stats.written_bytes));
  loads_.Raise({}, static_cast<double>(stats.loads));
  load_seconds_.Raise({}, stats.load_seconds);
  rewrites_.Raise({}, static_cast<double>(stats.rewrites));
  seldom_.Raise({}, static_cast<double>(stats.seldom));
  const std::pair<const char*, uint64_t> findings[] = {{"torn", stats.findings.torn},
                                                       {"removed", stats.findings.removed},
                                                       {"foreign", stats.findings.foreign},
                                                       {"undated", stats.findings.undated},
                                                       {"unread", stats.findings.unread}};
  for (const auto& [kind, count] : findings) findings_.Raise({{"kind", kind}}, static_cast<double>(count));
  const std::pair<const char*, uint64_t> failures[] = {
      {"queue_full", stats.queue_full},    {"reads_full", stats.reads_full},
      {"read_late", stats.reads_late},     {"no_room", stats.no_room},
      {"write_error", stats.write_errors}, {"read_error", stats.read_errors},
      {"damaged", stats.damaged}};
  for (const auto& [reason, count] : failures) {
    failures_.Raise({{"reason", reason}}, static_cast<double>(count));
  }
  const std::pair<const char*, uint64_t> expected[] = {{"kept", stats.expected.kept},
                                                       {"loaded", stats.expected.loaded},
                                                       {"no_room", stats.expected.no_room},
                                                       {"lost", stats.expected.lost}};
  for (const auto& [result, count] : expected) {
    workflow_.Raise({{"result", result}}, static_cast<double>(count));
  }
  if (stats.remote.configured) SetRemote(stats.remote);
}

void StoreMetrics::SetRemote(const RemoteStats& stats) const {
  const MetricLabels labels = {{"tier", "remote"}};
  hits_.Raise(labels, static_cast<double>(stats.hits));
  hit_tokens_.Raise(labels, static_cast<double>(stats.hit_tokens));
  open_.Set(labels, stats.open ? 1 : 0);
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
