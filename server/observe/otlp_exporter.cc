#include "server/observe/otlp_exporter.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "server/http/client/http_client.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// 64-bit integers are strings in protobuf's JSON.
ordered_json ValueJson(const Span::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {{"stringValue", *text}};
  if (const auto* number = std::get_if<int64_t>(&value)) return {{"intValue", absl::StrCat(*number)}};
  if (const auto* number = std::get_if<double>(&value)) return {{"doubleValue", *number}};
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    ordered_json values = ordered_json::array();
    for (const std::string& text : *list) values.push_back({{"stringValue", text}});
    return {{"arrayValue", {{"values", std::move(values)}}}};
  }
  return {{"boolValue", std::get<bool>(value)}};
}

std::string Nanoseconds(absl::Time time) { return absl::StrCat(absl::ToUnixNanos(time)); }

ordered_json SpanJson(const Span& span) {
  ordered_json json = {{"traceId", span.context.TraceIdHex()}, {"spanId", span.context.SpanIdHex()}};
  if (std::any_of(span.parent.begin(), span.parent.end(), [](uint8_t byte) { return byte != 0; })) {
    json["parentSpanId"] = TraceContext{.span_id = span.parent}.SpanIdHex();
  }
  json["name"] = span.name;
  json["kind"] = static_cast<int>(span.kind);
  json["startTimeUnixNano"] = Nanoseconds(span.start);
  json["endTimeUnixNano"] = Nanoseconds(span.end);
  ordered_json attributes = ordered_json::array();
  for (const auto& [key, value] : span.attributes) {
    attributes.push_back({{"key", key}, {"value", ValueJson(value)}});
  }
  json["attributes"] = std::move(attributes);
  constexpr int kError = 2;
  if (!span.error.empty()) json["status"] = {{"code", kError}, {"message", span.error}};
  return json;
}

// One POST; "" where the collector took it, else why not.
std::string Post(HttpClient* client, const std::string& body, absl::Duration timeout) {
  std::optional<std::string> result;
  client->Post(
      body, timeout, [](absl::string_view) { return absl::OkStatus(); },
      [&result](int status, const absl::Status& error) {
        const bool taken = error.ok() && status >= 200 && status < 300;
        if (taken) {
          result = "";
        } else {
          result = error.ok() ? absl::StrCat("HTTP status ", status) : std::string(error.message());
        }
      });
  while (!result.has_value()) client->RunFor(timeout);
  return *result;
}

}  // namespace

std::string OtlpJson(const std::string& service, const std::vector<Span>& spans) {
  ordered_json list = ordered_json::array();
  for (const Span& span : spans) list.push_back(SpanJson(span));
  const ordered_json resource = {
      {"attributes",
       {{{"key", "service.name"}, {"value", {{"stringValue", service}}}},
        {{"key", "service.version"}, {"value", {{"stringValue", ALUDEL_VERSION}}}}}}};
  ordered_json scope = {{"scope", {{"name", "aludel"}}}, {"spans", std::move(list)}};
  ordered_json one = {{"resource", resource}, {"scopeSpans", ordered_json::array({std::move(scope)})}};
  const ordered_json request = {{"resourceSpans", ordered_json::array({std::move(one)})}};
  return request.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

OtlpExporter::OtlpExporter(Options options, Metrics* metrics)
    : options_(std::move(options)),
      spans_(metrics->Counter("aludel_trace_spans_total", "Spans, by what became of them.")) {
  if (!enabled()) return;
  thread_ = std::thread([this] { Loop(); });
}

OtlpExporter::~OtlpExporter() {
  if (!enabled()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    stop_by_ = MonotonicNow() + options_.timeout;
  }
  wake_.notify_one();
  thread_.join();
}

void OtlpExporter::Export(Span span) {
  if (!enabled() || !span.context.sampled) return;
  bool full = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    full = queue_.size() >= options_.max_queue;
    if (!full) queue_.push_back(std::move(span));
    if (!full && queue_.size() == options_.max_batch) wake_.notify_one();
  }
  if (full) spans_.Add({{"result", "dropped"}});
}

void OtlpExporter::Loop() {
  HttpClient client({.url = ParseHttpUrl(options_.endpoint).value()});
  bool failing = false;
  while (true) {
    std::vector<Span> batch;
    absl::Duration timeout = options_.timeout;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait_for(lock, absl::ToChronoNanoseconds(options_.interval),
                     [this] { return stopping_ || queue_.size() >= options_.max_batch; });
      if (stopping_) timeout = std::min(timeout, stop_by_ - MonotonicNow());
      // A collector that is down or slow must not delay the stop.
      if (stopping_ && (queue_.empty() || failing || timeout <= absl::ZeroDuration())) {
        spans_.Add({{"result", "dropped"}}, static_cast<double>(queue_.size()));
        return;
      }
      const size_t count = std::min(queue_.size(), options_.max_batch);
      std::move(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(count), std::back_inserter(batch));
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(count));
    }
    if (batch.empty()) continue;
    const std::string error = Post(&client, OtlpJson(options_.service, batch), timeout);
    spans_.Add({{"result", error.empty() ? "exported" : "failed"}}, static_cast<double>(batch.size()));
    if (!error.empty() && !failing)
      spdlog::warn("traces: {} does not take spans: {}", options_.endpoint, error);
    if (error.empty() && failing) spdlog::info("traces: {} takes spans again", options_.endpoint);
    failing = !error.empty();
  }
}

}  // namespace aludel
