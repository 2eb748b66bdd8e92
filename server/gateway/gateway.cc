#include "server/gateway/gateway.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "server/gateway/page.h"
#include "server/gateway/prompt.h"
#include "server/logging.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

struct Route {
  absl::string_view path;  // a trailing "*" stands for the rest
  absl::string_view method;
  bool open = false;   // needs no key
  bool quiet = false;  // asked every few seconds by machines: no log line
};
constexpr Route kRoutes[] = {
    {"/", "GET", true},        {"/v1/chat/completions", "POST"}, {"/v1/completions", "POST"},
    {"/v1/models", "GET"},     {"/v1/models/*", "GET"},          {"/tokenize", "POST"},
    {"/detokenize", "POST"},   {"/health", "GET", true, true},   {"/ready", "GET", true, true},
    {"/version", "GET", true}, {"/metrics", "GET", true, true},
};
constexpr size_t kMaxRequestIdBytes = 128;

const Route* FindRoute(absl::string_view path) {
  for (const Route& route : kRoutes) {
    absl::string_view prefix = route.path;
    if (absl::ConsumeSuffix(&prefix, "*") ? absl::StartsWith(path, prefix) && path.size() > prefix.size()
                                          : path == prefix) {
      return &route;
    }
  }
  return nullptr;
}

// The client's own id where it is fit for logs and headers, else a new one.
std::string RequestId(const HttpRequest& request) {
  const absl::string_view id = request.Header("x-request-id");
  if (!id.empty() && id.size() <= kMaxRequestIdBytes &&
      std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isgraph(c); })) {
    return std::string(id);
  }
  thread_local absl::BitGen random;
  return absl::StrCat("req-", absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

// The operation that this request is: a part of the client's trace, or the root of one.
void PlaceInTrace(const HttpRequest& request, double share, RequestIdentity* identity) {
  const std::optional<TraceContext> parent = TraceContext::Parse(request.Header(kTraceparent));
  identity->trace = parent ? parent->NewChild() : TraceContext::NewTrace(share);
  if (parent) identity->parent_span = parent->span_id;
}

bool IsCompletion(absl::string_view route) {
  return route == "/v1/chat/completions" || route == "/v1/completions";
}

HttpResponse Preflight() {
  HttpResponse response;
  response.status = 204;
  response.headers = Cors::PreflightHeaders();
  return response;
}

HttpResponse Page() {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers = {{"Content-Security-Policy", kPagePolicy}, {"X-Content-Type-Options", "nosniff"}};
  response.body = std::string(kPage);
  return response;
}

HttpResponse Json(int status, const ordered_json& body) {
  HttpResponse response;
  response.status = status;
  response.body = Dump(body);
  return response;
}

ordered_json ModelJson(const ServedModel& model, const Router& router) {
  ordered_json json = {
      {"id", model.name}, {"object", "model"}, {"created", model.created}, {"owned_by", "aludel"}};
  const uint64_t max_context = router.State(model.name).max_context;
  if (max_context > 0) json["max_model_len"] = max_context;
  json["aludel"] = {{"formats", router.Formats(model.name)}};
  return json;
}

HttpResponse NoSuchPath(const HttpRequest& request) {
  ApiError error;
  error.status = 404;
  error.message = absl::StrCat("Unknown request URL: ", request.method, " ", request.path);
  error.code = "unknown_url";
  return error.ToResponse();
}

HttpResponse WrongMethod(const HttpRequest& request, const Route& route) {
  ApiError error;
  error.status = 405;
  error.message = absl::StrCat(request.path, " takes ", route.method, ", not ", request.method);
  error.code = "method_not_allowed";
  HttpResponse response = error.ToResponse();
  response.headers.push_back({"Allow", std::string(route.method)});
  return response;
}

}  // namespace

Gateway::Gateway(Options options, Access* access, const ServedModels* models, Router* router,
                 Metrics* metrics, OtlpExporter* traces)
    : options_(std::move(options)),
      cors_(options_.cors_allowed_origins),
      access_(access),
      models_(models),
      router_(router),
      metrics_(metrics),
      traces_(traces),
      completions_(options_.completions, models, router, metrics) {}

HttpResponse Gateway::Refusal(const HttpError& refused) {
  ApiError error;
  error.status = refused.status;
  error.message = refused.message;
  if (refused.status >= 500) error.type = "server_error";
  return error.ToResponse();
}

Gateway::~Gateway() { router_->AwaitCalls(); }

std::optional<ApiError> Gateway::Allow(const HttpRequest& request, bool completion, RequestIdentity* identity,
                                       std::shared_ptr<Access::Grant>* grant) {
  std::optional<ApiError> error = access_->Identify(request.Header("authorization"), &identity->client);
  if (!error && completion) error = access_->Admit(identity->client, grant);
  if (error) metrics_->CountHttpRefusal(error->code);
  return error;
}

void Gateway::Handle(HttpRequest request, HttpResponder responder) {
  const Route* route = FindRoute(request.path);
  if (route != nullptr && route->path == "/metrics" && !options_.serves_metrics) route = nullptr;
  // Unknown paths share one label, so that no client can grow our metrics.
  const std::string label(route == nullptr ? "other" : route->path);
  const bool preflight = Cors::IsPreflight(request);
  const bool right_method = route != nullptr && (request.method == route->method ||
                                                 (request.method == "HEAD" && route->method == "GET"));
  RequestIdentity identity{.id = RequestId(request)};
  PlaceInTrace(request, options_.trace_share, &identity);
  std::vector<HttpHeader> headers = cors_.HeadersFor(request);
  headers.push_back({"x-request-id", identity.id});
  headers.push_back({kTraceparent, identity.trace.ToTraceparent()});
  responder.AddHeaders(std::move(headers));

  const bool completion = right_method && IsCompletion(label);
  std::shared_ptr<Access::Grant> grant;
  std::optional<ApiError> refusal;
  if (!preflight && (route == nullptr || !route->open))
    refusal = Allow(request, completion, &identity, &grant);
  if (completion && !refusal) {
    completions_.Serve(label == "/v1/chat/completions", request, identity, std::move(responder),
                       [this, label, identity, grant = std::move(grant),
                        peer = request.peer](const CompletionOutcome& outcome) mutable {
                         // Now, and not with the last reference to this call, which may outlive everything.
                         const std::shared_ptr<Access::Grant> ended = std::move(grant);
                         ended->ChargeTokens(outcome.prompt_tokens + outcome.completion_tokens);
                         OnCompletionEnd(label, identity, peer, outcome);
                       });
    return;
  }
  HttpResponse response = preflight          ? Preflight()
                          : refusal          ? refusal->ToResponse()
                          : route == nullptr ? NoSuchPath(request)
                          : !right_method    ? WrongMethod(request, *route)
                                             : Answer(request, route->path);
  if (response.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  metrics_->CountHttpRequest(label, response.status);
  if (route == nullptr || !route->quiet) {
    LogEvent("request", {{"request_id", identity.id},
                         {"trace_id", identity.trace.TraceIdHex()},
                         {"key", identity.client},
                         {"peer", request.peer},
                         {"path", label},
                         {"status", response.status}});
  }
  responder.Respond(std::move(response));
}

void Gateway::OnCompletionEnd(const std::string& path, const RequestIdentity& identity,
                              const std::string& peer, const CompletionOutcome& outcome) {
  metrics_->CountHttpRequest(path, outcome.status);
  const v1::Started& started = outcome.started;
  const v1::Stages& stages = started.stages();
  const auto ms = [](double seconds) { return std::round(seconds * 1e6) / 1e3; };
  ordered_json line = {{"request_id", identity.id},
                       {"trace_id", identity.trace.TraceIdHex()},
                       {"key", identity.client},
                       {"peer", peer},
                       {"path", path},
                       {"status", outcome.status},
                       {"outcome", outcome.name},
                       {"model", outcome.model},
                       {"stream", outcome.stream},
                       {"prompt_tokens", outcome.prompt_tokens},
                       {"completion_tokens", outcome.completion_tokens},
                       {"total_ms", ms(outcome.seconds)}};
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
                 {"native_ms", ms(stages.native())},
                 {"first_decode_ms", ms(stages.first_decode())},
                 {"gateway_ms", ms(outcome.gateway_seconds)}});
  }
  if (!started.fallback_reason().empty()) line["fallback_reason"] = started.fallback_reason();
  if (!outcome.error.empty()) line["error"] = outcome.error;
  LogEvent("request", line);
  if (traces_ != nullptr && identity.trace.sampled) ExportSpan(identity, outcome);
}

// Attributes by OpenTelemetry's conventions for generative AI, ours beside them.
void Gateway::ExportSpan(const RequestIdentity& identity, const CompletionOutcome& outcome) {
  const v1::Started& started = outcome.started;
  Span span{.context = identity.trace,
            .parent = identity.parent_span,
            .name = absl::StrCat(outcome.operation, outcome.model.empty() ? "" : " ", outcome.model),
            .kind = Span::Kind::kServer,
            .end = absl::Now()};
  span.start = span.end - absl::Seconds(outcome.seconds);
  span.attributes = {{"gen_ai.operation.name", outcome.operation},
                     {"gen_ai.system", "aludel"},
                     {"gen_ai.request.model", outcome.model},
                     {"gen_ai.response.id", outcome.completion_id},
                     {"gen_ai.usage.input_tokens", outcome.prompt_tokens},
                     {"gen_ai.usage.output_tokens", outcome.completion_tokens},
                     {"http.response.status_code", int64_t{outcome.status}},
                     {"aludel.request_id", identity.id}};
  if (outcome.has_first_token) {
    span.attributes.insert(span.attributes.end(),
                           {{"gen_ai.response.finish_reasons", outcome.finish_reasons},
                            {"gen_ai.server.time_to_first_token", outcome.ttft_seconds},
                            {"aludel.plan", started.plan()},
                            {"aludel.format", started.format()},
                            {"aludel.payload_bytes", static_cast<int64_t>(started.payload_bytes())},
                            {"aludel.gateway_seconds", outcome.gateway_seconds}});
  }
  if (outcome.status >= 400) span.attributes.push_back({"error.type", std::string(outcome.name)});
  if (outcome.status >= 500) span.error = outcome.error;  // below, the fault is the client's
  traces_->Export(std::move(span));
}

HttpResponse Gateway::Answer(const HttpRequest& request, absl::string_view route) {
  if (route == "/") return Page();
  if (route == "/v1/models") return Models();
  if (route == "/v1/models/*") return Model(PercentDecode(absl::StripPrefix(request.path, "/v1/models/")));
  if (route == "/tokenize") {
    return ServeTokenize(*models_, request.body,
                         [this](const std::string& name) { return router_->State(name).max_context; });
  }
  if (route == "/detokenize") return ServeDetokenize(*models_, request.body);
  if (route == "/ready") return Ready(request);
  if (route == "/version") return Json(200, {{"version", ALUDEL_VERSION}});
  if (route == "/metrics") {
    HttpResponse response;
    response.content_type = Metrics::kContentType;
    response.body = metrics_->Render();
    return response;
  }
  return Json(200, {{"status", "ok"}});  // /health: the process answers
}

HttpResponse Gateway::Models() const {
  ordered_json list = ordered_json::array();
  for (const auto& model : models_->all()) {
    list.push_back(ModelJson(*model, *router_));
  }
  return Json(200, {{"object", "list"}, {"data", std::move(list)}});
}

HttpResponse Gateway::Model(absl::string_view id) const {
  const ServedModel* model = models_->Find(id);
  if (model == nullptr) return ModelNotFound(id).ToResponse();
  return Json(200, ModelJson(*model, *router_));
}

// Ready as soon as one model can be served (one broken model must not take the others out of rotation), or,
// for /ready?model=NAME, when that one can.
HttpResponse Gateway::Ready(const HttpRequest& request) const {
  std::string wanted;
  if (absl::StartsWith(request.query, "model=")) wanted = PercentDecode(request.query.substr(6));
  bool ready = false;
  ordered_json states = ordered_json::object();
  for (const auto& model : models_->all()) {
    const Router::ModelState state = router_->State(model->name);
    if (wanted.empty() || wanted == model->name) ready = ready || state.ready;
    states[model->name] = state.ready ? std::string("ready") : state.reason;
  }
  ready = ready && !draining_;
  return Json(ready ? 200 : 503, {{"status", draining_ ? "draining"
                                             : ready   ? "ready"
                                                       : "not ready"},
                                  {"models", std::move(states)}});
}

}  // namespace aludel
