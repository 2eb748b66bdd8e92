#pragma once

#include <cstdint>
#include <string>

#include "server/observe/metrics.h"

namespace aludel {

// How a request was served. Each value set is small; see Metrics for the bound.
struct RequestLabels {
  std::string model;
  std::string plan;    // local, remote, cached, stored, fallback
  std::string format;  // "" for local
};

// Exclusive seconds that sum to `ttft` (proto Stages).
struct StageSeconds {
  double queue = 0;
  double prefill = 0;
  double encode = 0;
  double transfer = 0;
  double reconstruct = 0;
  double recompute = 0;
  double first_decode = 0;
  double held = 0;     // the gateway: text that may yet become a tool call or a stop string waits for more
  double gateway = 0;  // the rest outside the decode server; 0 there, too
  double ttft = 0;
};

// What gateway and decode server both export of requests. Thread-safe.
class RequestMetrics {
 public:
  explicit RequestMetrics(Metrics* metrics);

  void ObserveFirstToken(const RequestLabels& labels, const StageSeconds& stages) const;
  // A request that ended with an error and without a token, and how long that took.
  void ObserveUnanswered(const std::string& model, double seconds) const;
  // Makes the model's series of requests without an answer, and by outcome, start at 0, so that an alert sees the
  // first one.
  void Expect(const std::string& model) const;
  void ObserveInterToken(const std::string& model, double seconds) const;
  // `outcome` is "ok" or a status code's name in lower case.
  void ObserveRequest(const RequestLabels& labels, const std::string& outcome, double seconds,
                      int64_t prompt_tokens, int64_t completion_tokens) const;
  // Of a request that got its first token: time until it was computed on, until its first token was made, and
  // from there to its end.
  void ObservePhases(const RequestLabels& labels, double queue, double prefill, double decode,
                     int64_t completion_tokens) const;
  // Requests in progress and queued.
  void SetRequests(const std::string& model, int64_t running, int64_t waiting) const;

 private:
  const HistogramFamily ttft_;
  const HistogramFamily first_generated_;
  const HistogramFamily unanswered_;
  const HistogramFamily ttft_stage_;
  const HistogramFamily inter_token_;
  const HistogramFamily e2e_;
  const HistogramFamily queue_time_;
  const HistogramFamily prefill_time_;
  const HistogramFamily decode_time_;
  const HistogramFamily time_per_output_token_;
  const HistogramFamily request_prompt_tokens_;
  const HistogramFamily request_generation_tokens_;
  const CounterFamily requests_;
  const CounterFamily prompt_tokens_;
  const CounterFamily generation_tokens_;
  const GaugeFamily running_;
  const GaugeFamily waiting_;
};

}  // namespace aludel
