#pragma once

#include <cstdint>
#include <string>

#include "server/decode/handoff/upgrade_outcome.h"
#include "server/handoff/handoff_metrics.h"
#include "server/host/adapter_pool.h"
#include "server/observe/metrics.h"
#include "server/observe/request_metrics.h"

namespace aludel {

// What sessions and handoffs of a decode server export. Thread-safe.
class DecodeMetrics {
 public:
  explicit DecodeMetrics(Metrics* metrics);

  const RequestMetrics requests;
  const HandoffMetrics handoffs;

  void CountFallback(const std::string& reason) const;
  void CountPlan(const std::string& plan, const std::string& reason) const;
  // A handoff that failed goes on with another prefill server.
  void CountReplan(const std::string& reason) const;
  // Of a handoff whose frames come in two parts, once its answer has begun.
  void CountUpgrade(UpgradeOutcome outcome) const;
  // A complete one came after so many tokens of the answer.
  void ObserveUpgrade(int64_t completion_tokens) const;
  // Prompt tokens that a prefill server said that it had stored, and those that it then found.
  void CountStored(int64_t predicted, int64_t actual) const;
  // The planner's prediction for a plan that was carried out, and the truth: seconds to the first token.
  void ObservePrediction(const RequestLabels& labels, double predicted, double actual) const;
  // Bytes a second from a prefill server; 0 where its link was never the bottleneck.
  void SetLinkRate(const std::string& target, double bytes_per_second) const;
  void ForgetLink(const std::string& target) const;
  // Of the adapters over `model`.
  void SetAdapters(const std::string& model, const AdapterStats& stats) const;

 private:
  const CounterFamily fallbacks_;
  const CounterFamily plans_;
  const CounterFamily replans_;
  const CounterFamily upgrades_;
  const HistogramFamily before_upgrade_;
  const CounterFamily stored_;
  const HistogramFamily prediction_;
  const HistogramFamily predicted_ttft_;
  const GaugeFamily link_rate_;
  const GaugeFamily adapters_;
  const GaugeFamily adapter_bytes_;
  const GaugeFamily adapter_waiting_;
  const CounterFamily adapter_events_;
};

}  // namespace aludel
