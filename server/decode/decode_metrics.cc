#include "server/decode/decode_metrics.h"

#include <vector>

namespace aludel {
namespace {

const std::vector<double> kRatioBuckets = {.25, .5, .7, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4};

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
      prediction_(metrics->Histogram("aludel_ttft_prediction_ratio",
                                     "Time to the first token over what the planner predicted.",
                                     kRatioBuckets)),
      predicted_ttft_(metrics->Histogram("aludel_predicted_ttft_seconds",
                                         "What the planner predicted for the plans that were carried out.",
                                         Metrics::TtftBuckets())),
      link_rate_(metrics->Gauge("aludel_link_bytes_per_second",
                                "Rate of frames from a prefill server where its link was the limit.")) {}

void DecodeMetrics::CountFallback(const std::string& reason) const { fallbacks_.Add({{"reason", reason}}); }

void DecodeMetrics::CountPlan(const std::string& plan, const std::string& reason) const {
  plans_.Add({{"plan", plan}, {"reason", reason}});
}

void DecodeMetrics::CountReplan(const std::string& reason) const { replans_.Add({{"reason", reason}}); }

void DecodeMetrics::ObservePrediction(const RequestLabels& request, double predicted, double actual) const {
  const MetricLabels labels = Of(request);
  predicted_ttft_.Observe(labels, predicted);
  if (predicted > 0) prediction_.Observe(labels, actual / predicted);
}

void DecodeMetrics::SetLinkRate(const std::string& target, double bytes_per_second) const {
  link_rate_.Set({{"target", target}}, bytes_per_second);
}

}  // namespace aludel
