#include "server/observe/metrics.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "runtime/engine/engine_stats.h"
#include "server/observe/process_stats.h"
#include "transport/transport_stats.h"

namespace aludel {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Buckets = Histogram::BucketBoundaries;

// vLLM's, so that dashboards carry over.
const Buckets kTtftBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                              1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
// vLLM's with finer ones below .3 s.
const Buckets kRequestBuckets = {.001, .005, .01, .025, .05, .1, .2, .3, .5,  .8,  1,   1.5, 2,    2.5,
                                 5,    10,   15,  20,   30,  40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kTokenCountBuckets = {1,   2,    5,    10,   20,    50,    100,   200,
                                    500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
// Nats; two caches of one model that differ by rounding are near 1e-5.
const Buckets kDivergenceBuckets = {1e-5, 1e-4, 1e-3, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10};
// vLLM's with finer ones below 10 ms, where small models live.
const Buckets kInterTokenBuckets = {.0005, .001, .0025, .005, .0075, .01, .025, .05, .075, .1, .15, .2,
                                    .3,    .4,   .5,    .75,  1,     2.5, 5,    7.5, 10,   20, 40,  80};
// A stage may be a thousandth of the whole.
const Buckets kStageBuckets = {.0001, .0005, .001, .0025, .005, .01, .02, .04, .06, .08, .1,
                               .25,   .5,    .75,  1,     2.5,  5,   10,  20,  40,  160};

const Buckets kRatioBuckets = {.25, .5, .7, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4};

}  // namespace

struct Metrics::Families {
  prometheus::Registry registry;
  prometheus::TextSerializer serializer;

  Family<Histogram>& ttft;
  Family<Histogram>& first_generated;
  Family<Histogram>& unanswered;
  Family<Histogram>& ttft_stage;
  Family<Histogram>& inter_token;
  Family<Histogram>& e2e;
  Family<Histogram>& queue_time;
  Family<Histogram>& prefill_time;
  Family<Histogram>& decode_time;
  Family<Histogram>& time_per_output_token;
  Family<Histogram>& request_prompt_tokens;
  Family<Histogram>& request_generation_tokens;
  Family<Counter>& requests;
  Family<Counter>& prompt_tokens;
  Family<Counter>& generation_tokens;
  Family<Gauge>& running;
  Family<Gauge>& waiting;
  Family<Gauge>& cache_usage;
  Family<Gauge>& kv_blocks;
  Family<Counter>& engine_events;
  Family<Counter>& prefix_queries;
  Family<Counter>& prefix_hits;
  Family<Counter>& preemptions;

  Family<Counter>& frames;
  Family<Counter>& frame_bytes;
  Family<Counter>& dropped_frames;
  Family<Histogram>& handoff_time;
  Family<Counter>& fallbacks;
  Family<Counter>& stalls;
  Family<Counter>& plans;
  Family<Histogram>& prediction;
  Family<Histogram>& predicted_ttft;
  Family<Gauge>& link_rate;
  Family<Counter>& tickets;
  Family<Counter>& replans;
  Family<Gauge>& prefill_targets;
  Family<Gauge>& decode_targets;
  Family<Gauge>& tickets_open;
  Family<Gauge>& arena;
  Family<Counter>& frame_cache_lookups;
  Family<Counter>& frame_cache_tokens;
  Family<Counter>& frame_cache_evictions;
  Family<Gauge>& frame_cache_bytes;
  Family<Counter>& transport_messages;
  Family<Counter>& transport_bytes;
  Family<Gauge>& transport_channels;

  Family<Counter>& http_requests;
  Family<Gauge>& http_connections;
  Family<Counter>& http_refusals;
  Family<Counter>& cut_answers;

  Family<Counter>& shadow_checks;
  Family<Counter>& shadow_tokens;
  Family<Histogram>& shadow_kl;
  Family<Counter>& spans;

  Family<Gauge>& build_info;
  Family<Counter>& cpu_seconds;
  Family<Gauge>& resident_bytes;
  Family<Gauge>& open_fds;
  Family<Gauge>& start_time;

  absl::Mutex mutex;
  std::map<std::string, std::set<std::string>> label_values ABSL_GUARDED_BY(mutex);
  std::vector<std::function<void()>> collectors ABSL_GUARDED_BY(mutex);
  std::map<Counter*, double> last ABSL_GUARDED_BY(mutex);  // snapshots turned into increments

  template <typename Metric>
  Family<Metric>& Make(const char* name, const char* help) {
    if constexpr (std::is_same_v<Metric, Histogram>) {
      return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
    } else if constexpr (std::is_same_v<Metric, Counter>) {
      return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
    } else {
      return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
    }
  }

  Families()
      : ttft(Make<Histogram>("aludel_time_to_first_token_seconds",
                             "Time from the request to its first token.")),
        first_generated(Make<Histogram>("aludel_time_to_first_generated_token_seconds",
                                        "The same without the time in which text was held back: what a tool "
                                        "call takes to become whole is no delay of its first token.")),
        unanswered(Make<Histogram>("aludel_unanswered_request_seconds",
                                   "How long requests waited that ended without a first token.")),
        ttft_stage(Make<Histogram>("aludel_time_to_first_token_stage_seconds",
                                   "Exclusive time of each stage before the first token; stages sum to it.")),
        inter_token(Make<Histogram>("aludel_inter_token_latency_seconds", "Time between two tokens.")),
        e2e(Make<Histogram>("aludel_e2e_request_latency_seconds", "Time from the request to its end.")),
        queue_time(Make<Histogram>("aludel_request_queue_time_seconds",
                                   "Time from the request until it is computed on.")),
        prefill_time(Make<Histogram>("aludel_request_prefill_time_seconds",
                                     "Time from then to the first token, however the cache came.")),
        decode_time(Make<Histogram>("aludel_request_decode_time_seconds",
                                    "Time from the first token to the request's end.")),
        time_per_output_token(Make<Histogram>("aludel_request_time_per_output_token_seconds",
                                              "A request's decode time by its tokens after the first.")),
        request_prompt_tokens(Make<Histogram>("aludel_request_prompt_tokens", "Prompt tokens of a request.")),
        request_generation_tokens(
            Make<Histogram>("aludel_request_generation_tokens", "Tokens generated for a request.")),
        requests(Make<Counter>("aludel_requests_total", "Requests that ended, by outcome.")),
        prompt_tokens(Make<Counter>("aludel_prompt_tokens_total", "Prompt tokens of ended requests.")),
        generation_tokens(Make<Counter>("aludel_generation_tokens_total", "Tokens generated.")),
        running(Make<Gauge>("aludel_num_requests_running", "Requests being computed.")),
        waiting(Make<Gauge>("aludel_num_requests_waiting", "Requests admitted and waiting.")),
        cache_usage(Make<Gauge>("aludel_kv_cache_usage_perc", "Used share of the KV cache, 0 to 1.")),
        kv_blocks(Make<Gauge>("aludel_kv_blocks", "KV blocks by state: total, used, cached, reserved.")),
        engine_events(Make<Counter>("aludel_engine_events_total", "What the engine counted, by event.")),
        prefix_queries(Make<Counter>("aludel_prefix_cache_queries_total",
                                     "Prompt tokens looked up in the prefix cache.")),
        prefix_hits(
            Make<Counter>("aludel_prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")),
        preemptions(Make<Counter>("aludel_num_preemptions_total",
                                  "Sequences that gave up blocks and computed them again.")),
        frames(Make<Counter>("aludel_handoff_frames_total", "Frames handed over.")),
        frame_bytes(Make<Counter>("aludel_handoff_bytes_total", "Frame bytes, headers included.")),
        dropped_frames(Make<Counter>("aludel_frames_dropped_total", "Frames refused, by reason.")),
        handoff_time(Make<Histogram>("aludel_handoff_seconds", "Handoffs from ticket to end, by outcome.")),
        fallbacks(Make<Counter>("aludel_fallbacks_total", "Handoffs replaced by local prefill, by reason.")),
        stalls(Make<Counter>("aludel_handoff_stalls_total",
                             "Times that a run could not go on encoding, by what it waited for.")),
        plans(Make<Counter>("aludel_plans_total", "Planner decisions, by plan and reason.")),
        prediction(Make<Histogram>("aludel_ttft_prediction_ratio",
                                   "Time to the first token over what the planner predicted.")),
        predicted_ttft(Make<Histogram>("aludel_predicted_ttft_seconds",
                                       "What the planner predicted for the plans that were carried out.")),
        link_rate(Make<Gauge>("aludel_link_bytes_per_second",
                              "Rate of frames from a prefill server where its link was the limit.")),
        tickets(Make<Counter>("aludel_tickets_total", "Tickets that have ended, by how.")),
        replans(Make<Counter>("aludel_replans_total",
                              "Failed handoffs that went on with another prefill server, by reason.")),
        prefill_targets(Make<Gauge>("aludel_prefill_target_state", "1 at the state a prefill server is in.")),
        decode_targets(Make<Gauge>("aludel_decode_target_ready", "1 where a decode server is ready.")),
        tickets_open(Make<Gauge>("aludel_tickets_open", "Tickets issued and not closed.")),
        arena(Make<Gauge>("aludel_frame_arena_bytes", "Registered frame memory: total, reserved.")),
        frame_cache_lookups(
            Make<Counter>("aludel_frame_cache_lookups_total", "Prompts looked up, by result.")),
        frame_cache_tokens(
            Make<Counter>("aludel_frame_cache_tokens_total", "Prompt tokens whose frames were cached.")),
        frame_cache_evictions(
            Make<Counter>("aludel_frame_cache_evictions_total", "Chunks that went to make room.")),
        frame_cache_bytes(Make<Gauge>("aludel_frame_cache_bytes", "Memory of cached frames.")),
        transport_messages(Make<Counter>("aludel_transport_messages_total", "Data-plane messages.")),
        transport_bytes(Make<Counter>("aludel_transport_bytes_total", "Data-plane payload bytes.")),
        transport_channels(Make<Gauge>("aludel_transport_channels", "Open data-plane connections.")),
        http_requests(Make<Counter>("aludel_http_requests_total", "HTTP requests, by path and status.")),
        http_connections(Make<Gauge>("aludel_http_connections", "Open client connections.")),
        http_refusals(Make<Counter>("aludel_http_refusals_total",
                                    "Requests turned away for their key or its limits, by reason.")),
        cut_answers(Make<Counter>("aludel_cut_answers_total",
                                  "Answers whose decode server was lost, by what became of them.")),
        shadow_checks(Make<Counter>("aludel_shadow_checks_total",
                                    "Answers computed again on the consumer's local prefill, by outcome.")),
        shadow_tokens(Make<Counter>("aludel_shadow_tokens_total",
                                    "Tokens of shadow checks, by whether local prefill would choose them.")),
        shadow_kl(Make<Histogram>("aludel_shadow_kl_nats",
                                  "KL(local prefill || answered) of one token's distribution.")),
        spans(Make<Counter>("aludel_trace_spans_total", "Spans, by what became of them.")),
        build_info(Make<Gauge>("aludel_build_info", "1, with the version as label.")),
        cpu_seconds(Make<Counter>("process_cpu_seconds_total", "User and system CPU time.")),
        resident_bytes(Make<Gauge>("process_resident_memory_bytes", "Resident memory.")),
        open_fds(Make<Gauge>("process_open_fds", "Open file descriptors.")),
        start_time(Make<Gauge>("process_start_time_seconds", "Start of the process, Unix time.")) {
    build_info.Add({{"version", ALUDEL_VERSION}}).Set(1);
    start_time.Add({}).Set(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  }

  // `value`, or "other" once the label has had its fill of values.
  std::string Bounded(const std::string& label, const std::string& value) {
    absl::MutexLock lock(&mutex);
    std::set<std::string>& values = label_values[label];
    if (values.count(value) != 0) return value;
    if (values.size() >= kMaxLabelValues) return "other";
    values.insert(value);
    return value;
  }

  Labels Bound(Labels labels) {
    for (auto& [label, value] : labels) value = Bounded(label, value);
    return labels;
  }

  Labels Of(const RequestLabels& labels) {
    return Bound({{"model", labels.model}, {"plan", labels.plan}, {"format", labels.format}});
  }

  // Raises the counter to a snapshot that only grows.
  void Raise(Counter& counter, double value) {
    absl::MutexLock lock(&mutex);
    double& last_value = last[&counter];
    if (value > last_value) counter.Increment(value - last_value);
    last_value = value;
  }
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::ObserveFirstToken(const RequestLabels& request, const StageSeconds& stages) {
  const Labels labels = families_->Of(request);
  families_->ttft.Add(labels, kTtftBuckets).Observe(stages.ttft);
  families_->first_generated.Add(labels, kTtftBuckets).Observe(stages.ttft - stages.held);
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
    Labels with_stage = labels;
    with_stage["stage"] = stage;
    families_->ttft_stage.Add(with_stage, kStageBuckets).Observe(seconds);
  }
}

void Metrics::ObserveUnanswered(const std::string& model, double seconds) {
  families_->unanswered.Add(families_->Bound({{"model", model}}), kTtftBuckets).Observe(seconds);
}

void Metrics::ExpectUnanswered(const std::string& model) {
  families_->unanswered.Add(families_->Bound({{"model", model}}), kTtftBuckets);
}

void Metrics::ObserveInterToken(const std::string& model, double seconds) {
  families_->inter_token.Add(families_->Bound({{"model", model}}), kInterTokenBuckets).Observe(seconds);
}

void Metrics::ObserveRequest(const RequestLabels& request, const std::string& outcome, double seconds,
                             int64_t prompt_tokens, int64_t completion_tokens) {
  families_->e2e.Add(families_->Of(request), kRequestBuckets).Observe(seconds);
  const Labels model = families_->Bound({{"model", request.model}});
  families_->requests.Add(families_->Bound({{"model", request.model}, {"outcome", outcome}})).Increment();
  families_->prompt_tokens.Add(model).Increment(static_cast<double>(prompt_tokens));
  families_->generation_tokens.Add(model).Increment(static_cast<double>(completion_tokens));
  families_->request_prompt_tokens.Add(model, kTokenCountBuckets).Observe(static_cast<double>(prompt_tokens));
  families_->request_generation_tokens.Add(model, kTokenCountBuckets)
      .Observe(static_cast<double>(completion_tokens));
}

void Metrics::ObservePhases(const RequestLabels& request, double queue, double prefill, double decode,
                            int64_t completion_tokens) {
  const Labels labels = families_->Of(request);
  families_->queue_time.Add(labels, kRequestBuckets).Observe(queue);
  families_->prefill_time.Add(labels, kRequestBuckets).Observe(prefill);
  families_->decode_time.Add(labels, kRequestBuckets).Observe(decode);
  if (completion_tokens < 2) return;
  families_->time_per_output_token.Add(families_->Bound({{"model", request.model}}), kInterTokenBuckets)
      .Observe(decode / static_cast<double>(completion_tokens - 1));
}

void Metrics::CountFrame(const std::string& direction, const std::string& format, uint64_t bytes) {
  const Labels labels = families_->Bound({{"direction", direction}, {"format", format}});
  families_->frames.Add(labels).Increment();
  families_->frame_bytes.Add(labels).Increment(static_cast<double>(bytes));
}

void Metrics::CountDroppedFrame(const std::string& reason, int64_t frames) {
  families_->dropped_frames.Add(families_->Bound({{"reason", reason}}))
      .Increment(static_cast<double>(frames));
}

void Metrics::CountHandoff(const std::string& direction, const std::string& outcome, double seconds) {
  families_->handoff_time
      .Add(families_->Bound({{"direction", direction}, {"outcome", outcome}}), kTtftBuckets)
      .Observe(seconds);
}

void Metrics::CountFallback(const std::string& reason) {
  families_->fallbacks.Add(families_->Bound({{"reason", reason}})).Increment();
}

void Metrics::CountStall(const std::string& reason) { families_->stalls.Add({{"for", reason}}).Increment(); }

void Metrics::CountPlan(const std::string& plan, const std::string& reason) {
  families_->plans.Add(families_->Bound({{"plan", plan}, {"reason", reason}})).Increment();
}

void Metrics::ObservePrediction(const RequestLabels& request, double predicted, double actual) {
  const Labels labels = families_->Of(request);
  families_->predicted_ttft.Add(labels, kTtftBuckets).Observe(predicted);
  if (predicted > 0) families_->prediction.Add(labels, kRatioBuckets).Observe(actual / predicted);
}

void Metrics::SetLinkRate(const std::string& target, double bytes_per_second) {
  families_->link_rate.Add(families_->Bound({{"target", target}})).Set(bytes_per_second);
}

void Metrics::CountTicket(const std::string& end) {
  families_->tickets.Add(families_->Bound({{"end", end}})).Increment();
}

void Metrics::CountReplan(const std::string& reason) {
  families_->replans.Add(families_->Bound({{"reason", reason}})).Increment();
}

void Metrics::SetPrefillTarget(const std::string& target, const std::string& state) {
  const std::string name = families_->Bounded("target", target);
  for (const char* other : {"ready", "down", "refused"}) {
    families_->prefill_targets.Add({{"target", name}, {"state", other}}).Set(state == other ? 1 : 0);
  }
}

void Metrics::SetDecodeTarget(const std::string& model, const std::string& target, bool ready) {
  families_->decode_targets.Add(families_->Bound({{"model", model}, {"target", target}})).Set(ready ? 1 : 0);
}

void Metrics::SetTicketsOpen(int64_t tickets) {
  families_->tickets_open.Add({}).Set(static_cast<double>(tickets));
}

void Metrics::SetArena(uint64_t bytes_total, uint64_t bytes_reserved) {
  families_->arena.Add({{"state", "total"}}).Set(static_cast<double>(bytes_total));
  families_->arena.Add({{"state", "reserved"}}).Set(static_cast<double>(bytes_reserved));
}

void Metrics::CountHttpRequest(const std::string& path, int status) {
  families_->http_requests.Add(families_->Bound({{"path", path}, {"status", std::to_string(status)}}))
      .Increment();
}

void Metrics::SetHttpConnections(int64_t open) {
  families_->http_connections.Add({}).Set(static_cast<double>(open));
}

void Metrics::CountHttpRefusal(const std::string& reason) {
  families_->http_refusals.Add(families_->Bound({{"reason", reason}})).Increment();
}

void Metrics::CountCutAnswer(const std::string& model, const std::string& outcome) {
  families_->cut_answers.Add(families_->Bound({{"model", model}, {"outcome", outcome}})).Increment();
}

void Metrics::CountShadowCheck(const std::string& model, const std::string& format,
                               const std::string& outcome) {
  families_->shadow_checks.Add(families_->Bound({{"model", model}, {"format", format}, {"outcome", outcome}}))
      .Increment();
}

void Metrics::ObserveShadowTokens(const std::string& model, const std::string& format, int64_t agreeing,
                                  int64_t differing) {
  const std::pair<const char*, int64_t> parts[] = {{"agree", agreeing}, {"differ", differing}};
  for (const auto& [verdict, tokens] : parts) {
    families_->shadow_tokens
        .Add(families_->Bound({{"model", model}, {"format", format}, {"verdict", verdict}}))
        .Increment(static_cast<double>(tokens));
  }
}

void Metrics::ObserveShadowKl(const std::string& model, const std::string& format, double nats) {
  families_->shadow_kl.Add(families_->Bound({{"model", model}, {"format", format}}), kDivergenceBuckets)
      .Observe(nats);
}

void Metrics::CountSpans(const std::string& result, int64_t spans) {
  families_->spans.Add(families_->Bound({{"result", result}})).Increment(static_cast<double>(spans));
}

void Metrics::SetRequests(const std::string& model, int64_t running, int64_t waiting) {
  const Labels labels = families_->Bound({{"model", model}});
  families_->running.Add(labels).Set(static_cast<double>(running));
  families_->waiting.Add(labels).Set(static_cast<double>(waiting));
}

void Metrics::SetEngine(const std::string& model, const EngineStats& stats) {
  SetRequests(model, stats.running, stats.waiting);
  const std::string name = families_->Bounded("model", model);
  families_->cache_usage.Add({{"model", name}})
      .Set(stats.kv_blocks_total == 0 ? 0
                                      : static_cast<double>(stats.kv_blocks_used) / stats.kv_blocks_total);
  const std::pair<const char*, int64_t> blocks[] = {{"total", stats.kv_blocks_total},
                                                    {"used", stats.kv_blocks_used},
                                                    {"cached", stats.kv_blocks_cached},
                                                    {"reserved", stats.kv_blocks_reserved}};
  for (const auto& [state, count] : blocks) {
    families_->kv_blocks.Add({{"model", name}, {"state", state}}).Set(static_cast<double>(count));
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
                                                     {"graph_changed", stats.replays.changed}};
  for (const auto& [event, count] : events) {
    families_->Raise(families_->engine_events.Add({{"model", name}, {"event", event}}),
                     static_cast<double>(count));
  }
  families_->Raise(families_->prefix_queries.Add({{"model", name}}),
                   static_cast<double>(stats.prefix_queries));
  families_->Raise(families_->prefix_hits.Add({{"model", name}}), static_cast<double>(stats.prefix_hits));
  families_->Raise(families_->preemptions.Add({{"model", name}}), static_cast<double>(stats.preemptions));
}

void Metrics::SetFrameCache(uint64_t hits, uint64_t partial_hits, uint64_t misses, uint64_t tokens,
                            uint64_t evictions, uint64_t bytes) {
  const std::pair<const char*, uint64_t> lookups[] = {
      {"hit", hits}, {"partial", partial_hits}, {"miss", misses}};
  for (const auto& [result, count] : lookups) {
    families_->Raise(families_->frame_cache_lookups.Add({{"result", result}}), static_cast<double>(count));
  }
  families_->Raise(families_->frame_cache_tokens.Add({}), static_cast<double>(tokens));
  families_->Raise(families_->frame_cache_evictions.Add({}), static_cast<double>(evictions));
  families_->frame_cache_bytes.Add({}).Set(static_cast<double>(bytes));
}

void Metrics::SetTransport(const TransportStats& stats) {
  const std::pair<const char*, uint64_t> messages[] = {{"sent", stats.messages_sent},
                                                       {"received", stats.messages_received},
                                                       {"dropped", stats.messages_dropped},
                                                       {"send_failed", stats.send_failures},
                                                       {"emulated_fault", stats.emulated_faults}};
  for (const auto& [what, count] : messages) {
    families_->Raise(families_->transport_messages.Add({{"event", what}}), static_cast<double>(count));
  }
  families_->Raise(families_->transport_bytes.Add({{"event", "sent"}}),
                   static_cast<double>(stats.bytes_sent));
  families_->Raise(families_->transport_bytes.Add({{"event", "received"}}),
                   static_cast<double>(stats.bytes_received));
  families_->transport_channels.Add({}).Set(static_cast<double>(stats.open_channels));
}

void Metrics::OnRender(std::function<void()> collect) {
  absl::MutexLock lock(&families_->mutex);
  families_->collectors.push_back(std::move(collect));
}

std::string Metrics::Render() {
  std::vector<std::function<void()>> collectors;
  {
    absl::MutexLock lock(&families_->mutex);
    collectors = families_->collectors;
  }
  for (const auto& collect : collectors) collect();
  const ProcessStats process = ReadProcessStats();
  families_->Raise(families_->cpu_seconds.Add({}), process.cpu_seconds);
  families_->resident_bytes.Add({}).Set(static_cast<double>(process.resident_bytes));
  families_->open_fds.Add({}).Set(static_cast<double>(process.open_fds));
  return families_->serializer.Serialize(families_->registry.Collect());
}

}  // namespace aludel
