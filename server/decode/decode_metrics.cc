#include "server/decode/decode_metrics.h"

#include <vector>

#include "absl/status/status.h"
#include "server/decode/plan/plan.h"
#include "server/rpc/rpc_status.h"

namespace aludel {
namespace {

const std::vector<double> kTokenBuckets = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
const std::vector<double> kRatioBuckets = {.25, .5, .7, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4};

// How handoffs fail: the prefill server is gone, is late, has no room, or its frames were lost.
constexpr absl::StatusCode kHandoffErrors[] = {
    absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kResourceExhausted,
    absl::StatusCode::kDataLoss};

MetricLabels Of(const RequestLabels& labels) {
  return {{"model", labels.model}, {"plan", labels.plan}, {"format", labels.format}};
}

}  // namespace

DecodeMetrics::DecodeMetrics(Metrics* metrics)
    : requests(metrics),
      handoffs(metrics),
      fallbacks_(
          metrics->Counter("aludel_fallbacks_total", "Handoffs replaced by local prefill, by reason.")),
      plans_(metrics->Counter("aludel_plans_total", "Planner decisions, by plan and reason.")),
      replans_(metrics->Counter("aludel_replans_total",
                                "Failed handoffs that went on with another prefill server, by reason.")),
      upgrades_(metrics->Counter("aludel_cache_upgrades_total",
                                 "Answers begun over the first planes of their cache, by what became of the "
                                 "others.")),
      before_upgrade_(metrics->Histogram("aludel_tokens_before_upgrade",
                                         "Tokens of an answer over the first planes of its cache, before the "
                                         "others had come.",
                                         kTokenBuckets)),
      stored_(
          metrics->Counter("aludel_handoff_hit_tokens_total",
                           "Prompt tokens in the prefix stores of prefill servers, as they had told and as "
                           "they said in the end.")),
      prediction_(metrics->Histogram("aludel_ttft_prediction_ratio",
                                     "Time to the first token over what the planner predicted.",
                                     kRatioBuckets)),
      predicted_ttft_(metrics->Histogram("aludel_predicted_ttft_seconds",
                                         "What the planner predicted for the plans that were carried out.",
                                         Metrics::TtftBuckets())),
      link_rate_(metrics->Gauge("aludel_link_bytes_per_second",
                                "Rate of frames from a prefill server where its link was the limit.")),
      adapters_(metrics->Gauge("aludel_adapters", "LoRA adapters by state: known, resident.")),
      adapter_bytes_(metrics->Gauge("aludel_adapter_bytes", "Memory of the resident LoRA adapters.")),
      adapter_waiting_(metrics->Gauge("aludel_adapter_requests_waiting",
                                      "Requests that wait for their LoRA adapter to be resident.")),
      adapter_events_(
          metrics->Counter("aludel_adapter_events_total", "LoRA adapters by event: load, evict.")) {
  // What alerts and dashboards ask for starts at 0, so that they see the first increase.
  for (const absl::StatusCode reason : kHandoffErrors) {
    fallbacks_.Add({{"reason", StatusName(reason)}}, 0);
    replans_.Add({{"reason", StatusName(reason)}}, 0);
    handoffs.ExpectHandoff("received", StatusName(reason));
  }
  // A codec that cannot hold the prompt.
  fallbacks_.Add({{"reason", StatusName(absl::StatusCode::kOutOfRange)}}, 0);
  handoffs.ExpectHandoff("received", StatusName(absl::StatusCode::kOk));
  for (uint8_t outcome = 0; outcome < kUpgradeOutcomes; ++outcome) {
    upgrades_.Add({{"outcome", Name(static_cast<UpgradeOutcome>(outcome))}}, 0);
  }
  before_upgrade_.Expect({});
  for (const char* kind : {"predicted", "actual"}) stored_.Add({{"kind", kind}}, 0);
  plans_.Add({{"plan", Name(PlanKind::kShed)}, {"reason", Name(PlanReason::kDeadline)}}, 0);
}

void DecodeMetrics::CountFallback(const std::string& reason) const { fallbacks_.Add({{"reason", reason}}); }

void DecodeMetrics::CountUpgrade(UpgradeOutcome outcome) const {
  upgrades_.Add({{"outcome", Name(outcome)}});
}

void DecodeMetrics::ObserveUpgrade(int64_t completion_tokens) const {
  before_upgrade_.Observe({}, static_cast<double>(completion_tokens));
}

void DecodeMetrics::CountStored(int64_t predicted, int64_t actual) const {
  stored_.Add({{"kind", "predicted"}}, static_cast<double>(predicted));
  stored_.Add({{"kind", "actual"}}, static_cast<double>(actual));
}

void DecodeMetrics::CountPlan(const std::string& plan, const std::string& reason) const {
  plans_.Add({{"plan", plan}, {"reason", reason}});
}

void DecodeMetrics::CountReplan(const std::string& reason) const { replans_.Add({{"reason", reason}}); }

void DecodeMetrics::ObservePrediction(const RequestLabels& request, double predicted, double actual) const {
  const MetricLabels labels = Of(request);
  predicted_ttft_.Observe(labels, predicted);
  if (predicted > 0) prediction_.Observe(labels, actual / predicted);
}

void DecodeMetrics::SetAdapters(const std::string& model, const AdapterStats& stats) const {
  adapters_.Set({{"model", model}, {"state", "known"}}, static_cast<double>(stats.known));
  adapters_.Set({{"model", model}, {"state", "resident"}}, static_cast<double>(stats.resident));
  adapter_bytes_.Set({{"model", model}}, static_cast<double>(stats.resident_bytes));
  adapter_waiting_.Set({{"model", model}}, static_cast<double>(stats.waiting));
  adapter_events_.Raise({{"model", model}, {"event", "load"}}, static_cast<double>(stats.loads));
  adapter_events_.Raise({{"model", model}, {"event", "evict"}}, static_cast<double>(stats.evictions));
}

void DecodeMetrics::SetLinkRate(const std::string& target, double bytes_per_second) const {
  link_rate_.Set({{"target", target}}, bytes_per_second);
}

void DecodeMetrics::ForgetLink(const std::string& target) const { link_rate_.Remove({{"target", target}}); }

}  // namespace aludel
