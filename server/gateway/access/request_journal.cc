#include "server/gateway/access/request_journal.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/observe/logging.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// Of what a client makes up.
constexpr size_t kMaxPathBytes = 128;
constexpr size_t kMaxMethodBytes = 16;
constexpr size_t kMaxErrorBytes = 512;

ordered_json Line(const RequestIdentity& identity, int status, const std::string& error) {
  ordered_json line = {{"request_id", identity.id},
                       {"trace_id", identity.trace.TraceIdHex()},
                       {"key", identity.client},
                       {"peer", identity.peer},
                       {"method", identity.method.substr(0, kMaxMethodBytes)},
                       {"path", identity.path.substr(0, kMaxPathBytes)},
                       {"status", status},
                       {"outcome", OutcomeName(status)}};
  if (!error.empty()) line["error"] = error.substr(0, kMaxErrorBytes);
  return line;
}

}  // namespace

RequestJournal::RequestJournal(Metrics* metrics, OtlpExporter* traces)
    : requests_(metrics->Counter("aludel_http_requests_total", "HTTP requests, by path and status.")),
      traces_(traces) {}

void RequestJournal::Count(const RequestIdentity& identity, int status) {
  requests_.Add({{"path", identity.route}, {"status", std::to_string(status)}});
}

void RequestJournal::Answered(const RequestIdentity& identity, const HttpResponse& response, bool quiet) {
  Count(identity, response.status);
  if (!quiet) Log(response.status, Line(identity, response.status, response.error));
}

void RequestJournal::Log(int status, ordered_json line) {
  if (status == 429) {
    const std::optional<int64_t> left_out = overload_lines_.Take();
    if (!left_out) return;
    if (*left_out > 0) line["left_out"] = *left_out;
  }
  LogEvent("request", line);
}

void RequestJournal::Refused(const RequestIdentity& identity, const HttpError& error) {
  Count(identity, error.status);
  const std::optional<int64_t> left_out = refusal_lines_.Take();
  if (!left_out) return;
  ordered_json line = Line(identity, error.status, error.message);
  if (*left_out > 0) line["left_out"] = *left_out;
  LogEvent("request", line);
}

void RequestJournal::Completed(const RequestIdentity& identity, const CompletionOutcome& outcome) {
  Count(identity, outcome.status);
  const v1::Started& started = outcome.started;
  const v1::Stages& stages = started.stages();
  const auto ms = [](double seconds) { return std::round(seconds * 1e6) / 1e3; };
  ordered_json line = Line(identity, outcome.status, outcome.error);
  line.update({{"model", outcome.model},
               {"stream", outcome.stream},
               {"prompt_tokens", outcome.prompt_tokens},
               {"completion_tokens", outcome.completion_tokens},
               {"total_ms", ms(outcome.seconds)}});
  if (outcome.has_first_token) {
    line.update({{"completion_id", outcome.completion_id},
                 {"finish_reason", absl::StrJoin(outcome.finish_reasons, ",")},
                 {"plan", started.plan()},
                 {"format", started.format()},
                 {"payload_bytes", started.payload_bytes()},
                 {"raw_bytes", started.raw_bytes()},
                 {"ttft_ms", ms(outcome.ttft_seconds)},
                 {"queue_ms", ms(stages.queue())},
                 {"prefill_ms", ms(stages.prefill())},
                 {"encode_ms", ms(stages.encode())},
                 {"transfer_ms", ms(stages.transfer())},
                 {"reconstruct_ms", ms(stages.reconstruct())},
                 {"recompute_ms", ms(stages.recompute())},
                 {"first_decode_ms", ms(stages.first_decode())},
                 {"held_ms", ms(outcome.held_seconds)},
                 {"gateway_ms", ms(outcome.gateway_seconds)}});
  }
  if (!started.fallback_reason().empty()) line["fallback_reason"] = started.fallback_reason();
  Log(outcome.status, std::move(line));
  if (traces_ != nullptr && identity.trace.sampled) ExportSpan(identity, outcome);
}

// Attributes by OpenTelemetry's conventions for generative AI, ours beside them.
void RequestJournal::ExportSpan(const RequestIdentity& identity, const CompletionOutcome& outcome) {
  const v1::Started& started = outcome.started;
  Span span{.context = identity.trace,
            .parent = identity.parent_span,
            .name = absl::StrCat(outcome.operation, outcome.model.empty() ? "" : " ", outcome.model),
            .kind = Span::Kind::kServer,
            .end = absl::Now()};
  span.start = span.end - absl::Seconds(outcome.seconds);
  span.attributes = {{"gen_ai.operation.name", outcome.operation},
                     {"gen_ai.provider.name", "aludel"},
                     {"gen_ai.system", "aludel"},  // its older name
                     {"gen_ai.request.model", outcome.model},
                     {"gen_ai.response.id", outcome.completion_id},
                     {"gen_ai.usage.input_tokens", outcome.prompt_tokens},
                     {"gen_ai.usage.output_tokens", outcome.completion_tokens},
                     {"http.response.status_code", int64_t{outcome.status}},
                     {"aludel.request_id", identity.id}};
  if (outcome.max_tokens) span.attributes.push_back({"gen_ai.request.max_tokens", *outcome.max_tokens});
  if (outcome.temperature) span.attributes.push_back({"gen_ai.request.temperature", *outcome.temperature});
  if (outcome.has_first_token) {
    span.attributes.insert(span.attributes.end(),
                           {{"gen_ai.response.model", outcome.model},
                            {"gen_ai.response.finish_reasons", outcome.finish_reasons},
                            {"gen_ai.server.time_to_first_token", outcome.ttft_seconds},
                            {"aludel.plan", started.plan()},
                            {"aludel.format", started.format()},
                            {"aludel.payload_bytes", static_cast<int64_t>(started.payload_bytes())},
                            {"aludel.held_seconds", outcome.held_seconds},
                            {"aludel.gateway_seconds", outcome.gateway_seconds}});
  }
  if (outcome.status >= 400) span.attributes.push_back({"error.type", std::string(outcome.name)});
  if (outcome.status >= 500) span.error = outcome.error;  // below, the fault is the client's
  traces_->Export(std::move(span));
}

}  // namespace aludel
