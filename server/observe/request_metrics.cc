#include "server/observe/request_metrics.h"

#include <utility>
#include <vector>

namespace aludel {
namespace {

using Buckets = std::vector<double>;

// vLLM's with finer ones below .3 s.
const Buckets kRequestBuckets = {.001, .005, .01, .025, .05, .1, .2, .3, .5,  .8,  1,   1.5, 2,    2.5,
                                 5,    10,   15,  20,   30,  40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTokenCountBuckets = {1,   2,    5,    10,   20,    50,    100,   200,
                                    500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
// vLLM's with finer ones below 10 ms, where small models live.
const Buckets kInterTokenBuckets = {.0005, .001, .0025, .005, .0075, .01, .025, .05, .075, .1, .15, .2,
                                    .3,    .4,   .5,    .75,  1,     2.5, 5,    7.5, 10,   20, 40,  80};
// A stage may be a thousandth of the whole.
const Buckets kStageBuckets = {.0001, .0005, .001, .0025, .005, .01, .02, .04, .06, .08, .1,
                               .25,   .5,    .75,  1,     2.5,  5,   10,  20,  40,  160};

MetricLabels Of(const RequestLabels& labels) {
  return {{"model", labels.model}, {"plan", labels.plan}, {"format", labels.format}};
}

}  // namespace

RequestMetrics::RequestMetrics(Metrics* metrics)
    : ttft_(metrics->Histogram("aludel_time_to_first_token_seconds",
                               "Time from the request to its first token.", Metrics::TtftBuckets())),
      first_generated_(
          metrics->Histogram("aludel_time_to_first_generated_token_seconds",
                             "The same without the time in which text was held back: what a tool "
                             "call takes to become whole is no delay of its first token.",
                             Metrics::TtftBuckets())),
      unanswered_(metrics->Histogram("aludel_unanswered_request_seconds",
                                     "How long requests waited that ended without a first token.",
                                     Metrics::TtftBuckets())),
      ttft_stage_(metrics->Histogram("aludel_time_to_first_token_stage_seconds",
                                     "Exclusive time of each stage before the first token; stages sum to it.",
                                     kStageBuckets)),
      inter_token_(metrics->Histogram("aludel_inter_token_latency_seconds", "Time between two tokens.",
                                      kInterTokenBuckets)),
      e2e_(metrics->Histogram("aludel_e2e_request_latency_seconds", "Time from the request to its end.",
                              kRequestBuckets)),
      queue_time_(metrics->Histogram("aludel_request_queue_time_seconds",
                                     "Time from the request until it is computed on.", kRequestBuckets)),
      prefill_time_(metrics->Histogram("aludel_request_prefill_time_seconds",
                                       "Time from then to the first token, however the cache came.",
                                       kRequestBuckets)),
      decode_time_(metrics->Histogram("aludel_request_decode_time_seconds",
                                      "Time from the first token to the request's end.", kRequestBuckets)),
      time_per_output_token_(metrics->Histogram("aludel_request_time_per_output_token_seconds",
                                                "A request's decode time by its tokens after the first.",
                                                kInterTokenBuckets)),
      request_prompt_tokens_(metrics->Histogram("aludel_request_prompt_tokens", "Prompt tokens of a request.",
                                                kTokenCountBuckets)),
      request_generation_tokens_(metrics->Histogram("aludel_request_generation_tokens",
                                                    "Tokens generated for a request.", kTokenCountBuckets)),
      requests_(metrics->Counter("aludel_requests_total", "Requests that ended, by outcome.")),
      prompt_tokens_(metrics->Counter("aludel_prompt_tokens_total", "Prompt tokens of ended requests.")),
      generation_tokens_(metrics->Counter("aludel_generation_tokens_total", "Tokens generated.")),
      running_(metrics->Gauge("aludel_num_requests_running", "Requests being computed.")),
      waiting_(metrics->Gauge("aludel_num_requests_waiting", "Requests admitted and waiting.")) {}

void RequestMetrics::ObserveFirstToken(const RequestLabels& request, const StageSeconds& stages) const {
  const MetricLabels labels = Of(request);
  ttft_.Observe(labels, stages.ttft);
  first_generated_.Observe(labels, stages.ttft - stages.held);
  const std::pair<const char*, double> parts[] = {{"queue", stages.queue},
                                                  {"prefill", stages.prefill},
                                                  {"encode", stages.encode},
                                                  {"transfer", stages.transfer},
                                                  {"reconstruct", stages.reconstruct},
                                                  {"recompute", stages.recompute},
                                                  {"first_decode", stages.first_decode},
                                                  {"held", stages.held},
                                                  {"gateway", stages.gateway}};
  for (const auto& [stage, seconds] : parts) {
    MetricLabels with_stage = labels;
    with_stage["stage"] = stage;
    ttft_stage_.Observe(with_stage, seconds);
  }
}

void RequestMetrics::ObserveUnanswered(const std::string& model, double seconds) const {
  unanswered_.Observe({{"model", model}}, seconds);
}

void RequestMetrics::Expect(const std::string& model) const {
  unanswered_.Expect({{"model", model}});
  for (const char* outcome :
       {"ok", "resource_exhausted", "unavailable", "deadline_exceeded", "cancelled", "internal"}) {
    requests_.Add({{"model", model}, {"outcome", outcome}}, 0);
  }
}

void RequestMetrics::ObserveInterToken(const std::string& model, double seconds) const {
  inter_token_.Observe({{"model", model}}, seconds);
}

void RequestMetrics::ObserveRequest(const RequestLabels& request, const std::string& outcome, double seconds,
                                    int64_t prompt_tokens, int64_t completion_tokens) const {
  e2e_.Observe(Of(request), seconds);
  const MetricLabels model = {{"model", request.model}};
  requests_.Add({{"model", request.model}, {"outcome", outcome}});
  prompt_tokens_.Add(model, static_cast<double>(prompt_tokens));
  generation_tokens_.Add(model, static_cast<double>(completion_tokens));
  request_prompt_tokens_.Observe(model, static_cast<double>(prompt_tokens));
  request_generation_tokens_.Observe(model, static_cast<double>(completion_tokens));
}

void RequestMetrics::ObservePhases(const RequestLabels& request, double queue, double prefill, double decode,
                                   int64_t completion_tokens) const {
  const MetricLabels labels = Of(request);
  queue_time_.Observe(labels, queue);
  prefill_time_.Observe(labels, prefill);
  decode_time_.Observe(labels, decode);
  if (completion_tokens < 2) return;
  time_per_output_token_.Observe({{"model", request.model}},
                                 decode / static_cast<double>(completion_tokens - 1));
}

void RequestMetrics::SetRequests(const std::string& model, int64_t running, int64_t waiting) const {
  running_.Set({{"model", model}}, static_cast<double>(running));
  waiting_.Set({{"model", model}}, static_cast<double>(waiting));
}

}  // namespace aludel
