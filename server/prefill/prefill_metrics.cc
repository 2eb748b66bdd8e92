#include "server/prefill/prefill_metrics.h"

#include "spdlog/spdlog.h"

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
      video_failures_(
          metrics->Counter("aludel_video_failures_total",
                           "Payloads of packing video that went out as they are because libx265 failed.")) {
  video_failures_.Add({}, 0);
}

void PrefillMetrics::CountStall(Stall stall) const { stalls_.Add({{"for", Name(stall)}}); }

void PrefillMetrics::SetVideoFailures(const VideoFailures& failures) const {
  absl::MutexLock lock(&mutex_);
  // Of two threads' snapshots the older one may come last.
  if (failures.payloads <= video_failures_seen_) return;
  if (video_failures_seen_ == 0) {
    spdlog::warn("packing video: libx265 failed and codes go out as they are, which is larger: {}",
                 failures.first);
  }
  video_failures_.Add({}, static_cast<double>(failures.payloads - video_failures_seen_));
  video_failures_seen_ = failures.payloads;
}

}  // namespace aludel
