#include "server/gateway/gateway.h"

#include <utility>

#include "absl/random/random.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/gateway/anthropic/anthropic_error.h"
#include "server/gateway/anthropic/count_tokens.h"
#include "server/gateway/anthropic/messages_dialect.h"
#include "server/gateway/openai/adapter_requests.h"
#include "server/gateway/openai/completion_exchange.h"
#include "server/gateway/openai/openai_dialect.h"
#include "server/gateway/openai/prompt.h"
#include "server/gateway/openapi/docs_page.h"
#include "server/gateway/openapi/openapi.h"
#include "server/gateway/page/page.h"
#include "server/gateway/responses/responses_dialect.h"
#include "server/rpc/rpc_fields.h"
#include "server/rpc/rpc_status.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// Large bodies, beside the threads that answer all others. Tokenizing one of four megabytes takes up to
// 250 MB.
constexpr int kHeavyThreads = 2;
constexpr size_t kMaxQueuedHeavy = 64;

// The client's own id where it is fit for logs and headers, else a new one.
std::string RequestId(const HttpRequest& request) {
  const absl::string_view id = request.Header("x-request-id");
  if (!id.empty() && CheckRequestId(id).ok()) return std::string(id);
  thread_local absl::BitGen random;
  return absl::StrCat("req-", absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

// The operation that this request is: a part of the client's trace, or the root of one.
void PlaceInTrace(const HttpRequest& request, double share, RequestIdentity* identity) {
  const std::optional<TraceContext> parent = TraceContext::Parse(request.Header(kTraceparent));
  identity->trace = parent ? parent->NewChild() : TraceContext::NewTrace(share);
  if (parent) identity->parent_span = parent->span_id;
}

HttpResponse Page() {
  static const std::string* const policy = new std::string(PagePolicy());
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  response.headers = {{"Content-Security-Policy", *policy}, {"X-Content-Type-Options", "nosniff"}};
  response.body = std::string(kPage);
  return response;
}

// `id`: the model's name, or that of an adapter over it.
ordered_json ModelJson(const std::string& id, const ServedModel& model, const Router& router) {
  ordered_json json = {{"id", id}, {"object", "model"}, {"created", model.created}, {"owned_by", "aludel"}};
  const uint64_t max_context = router.State(model.name).max_context;
  if (max_context > 0) json["max_model_len"] = max_context;
  json["root"] = id;
  json["parent"] = nullptr;
  if (id != model.name) json["parent"] = model.name;
  json["aludel"] = {{"formats", router.Formats(model.name)}};
  return json;
}

// Paths and methods are quoted in part: they need no key to be as long as a header.
HttpResponse NoSuchPath(const HttpRequest& request) {
  ApiError error;
  error.status = 404;
  error.message =
      absl::StrCat("Unknown request URL: ", Quotable(request.method), " ", Quotable(request.path));
  if (const absl::string_view why = WhyNotServed(request.path); !why.empty()) {
    absl::StrAppend(&error.message, ". The models of this gateway generate text, ", why);
  }
  error.code = "unknown_url";
  HttpResponse response = error.ToResponse();
  // Ollama's clients show a text, and of anything else nothing.
  if (absl::StartsWith(request.path, "/api/")) response.body = Dump({{"error", error.message}});
  return response;
}

HttpResponse WrongMethod(const HttpRequest& request, const Route& route) {
  ApiError error;
  error.status = 405;
  error.message =
      absl::StrCat(Quotable(request.path), " takes ", route.method, ", not ", Quotable(request.method));
  error.code = "method_not_allowed";
  HttpResponse response = error.ToResponse();
  response.headers.push_back({"Allow", route.Allow()});
  return response;
}

HttpResponse NoBodyHere(const HttpRequest& request) {
  ApiError error;
  error.status = 413;
  error.message = absl::StrCat(Quotable(request.method), " ", Quotable(request.path), " takes no body");
  error.code = "body_not_taken";
  return error.ToResponse();
}

HttpResponse CompressedBody(absl::string_view encoding) {
  ApiError error;
  error.status = 415;
  error.message =
      absl::StrCat("bodies are read as they are: Content-Encoding is '", Quotable(encoding), "', want none");
  error.code = "unsupported_content_encoding";
  return error.ToResponse();
}

ApiError NoAdmin() {
  ApiError error;
  error.status = 403;
  error.message = "this path is for API keys with admin=1 in access.keys_file";
  error.code = "admin_key_required";
  return error;
}

// Nothing where the body is worth reading.
std::optional<HttpResponse> RefuseBody(const HttpRequest& request, bool preflight, const Route* route) {
  if (preflight) return NoBodyHere(request);
  if (route == nullptr) return NoSuchPath(request);
  if (!route->Takes(request.method)) return WrongMethod(request, *route);
  if (!route->TakesBody()) return NoBodyHere(request);
  const absl::string_view encoding = request.Header("content-encoding");
  if (!encoding.empty() && !absl::EqualsIgnoreCase(encoding, "identity")) return CompressedBody(encoding);
  return std::nullopt;
}

HttpResponse NoContent() {
  HttpResponse response;
  response.status = 204;
  return response;
}

// An error that was written in OpenAI's shape, in that of its route.
HttpResponse InShapeOf(const Route* route, const RequestIdentity& identity, HttpResponse response) {
  if (route != nullptr && route->anthropic && !response.error.empty()) {
    response.body = Dump(AnthropicErrorJson(response.status, response.error, identity.id));
  }
  return response;
}

// As OpenAI's clients send it, or as Anthropic's do.
std::string Authorization(const HttpRequest& request) {
  const absl::string_view authorization = request.Header("authorization");
  const absl::string_view key = request.Header("x-api-key");
  return authorization.empty() && !key.empty() ? absl::StrCat("Bearer ", key) : std::string(authorization);
}

HttpResponse WithHeaders(HttpResponse response, const std::vector<HttpHeader>& more) {
  response.headers.insert(response.headers.end(), more.begin(), more.end());
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
      refusals_(metrics->Counter("aludel_http_refusals_total",
                                 "Requests turned away for their key or its limits, by reason.")),
      journal_(metrics, traces),
      heavy_({.name = "large requests", .threads = kHeavyThreads, .max_queue = kMaxQueuedHeavy}),
      responses_(options_.responses),
      completions_(options_.completions, models, router, metrics, &heavy_) {}

Gateway::~Gateway() {
  heavy_.Shutdown();
  completions_.Shutdown();
  router_->AwaitCalls();
}

HttpServer::Handler Gateway::Bind(HttpServerOptions* options) {
  options->check_head = [this](const HttpRequest& request) { return CheckHead(request); };
  options->refuse = [this](const HttpRequest& request, const HttpError& error) {
    return Refuse(request, error);
  };
  options->at_once = [](const HttpRequest& request) {
    const Route* route = FindRoute(request.path);
    return route != nullptr && route->at_once;
  };
  return [this](HttpRequest request, HttpResponder responder) {
    Handle(std::move(request), std::move(responder));
  };
}

absl::StatusOr<std::unique_ptr<HttpServer>> Gateway::Listen(HttpServerOptions options) {
  HttpServer::Handler handler = Bind(&options);
  return HttpServer::Start(options, std::move(handler));
}

Gateway::Arrival Gateway::Receive(const HttpRequest& request) const {
  Arrival arrival;
  arrival.route = FindRoute(request.path);
  if (arrival.route != nullptr && arrival.route->admin && !options_.serves_admin) arrival.route = nullptr;
  arrival.preflight = Cors::IsPreflight(request);
  RequestIdentity& identity = arrival.identity;
  identity.id = RequestId(request);
  identity.peer = request.peer;
  identity.method = request.method;
  identity.path = request.path;
  identity.route = std::string(arrival.route == nullptr ? "other" : arrival.route->path);
  PlaceInTrace(request, options_.trace_share, &identity);
  arrival.headers = cors_.HeadersFor(request);
  arrival.headers.push_back({"x-request-id", identity.id});
  if (arrival.route != nullptr && arrival.route->anthropic) {
    arrival.headers.push_back({"request-id", identity.id});
  }
  arrival.headers.push_back({kTraceparent, identity.trace.ToTraceparent()});
  return arrival;
}

std::optional<ApiError> Gateway::CheckKey(const HttpRequest& request, Arrival* arrival) const {
  if (arrival->preflight || (arrival->route != nullptr && arrival->route->open)) return std::nullopt;
  return access_->Identify(Authorization(request), &arrival->identity.client);
}

std::optional<HttpResponse> Gateway::CheckHead(const HttpRequest& request) {
  Arrival arrival = Receive(request);
  std::optional<HttpResponse> response;
  if (const std::optional<ApiError> stranger = CheckKey(request, &arrival)) {
    refusals_.Add({{"reason", stranger->code}});
    response = stranger->ToResponse();
  } else {
    response = RefuseBody(request, arrival.preflight, arrival.route);
  }
  if (!response) return std::nullopt;
  journal_.Refused(arrival.identity, {.status = response->status, .message = response->error});
  return WithHeaders(InShapeOf(arrival.route, arrival.identity, *std::move(response)), arrival.headers);
}

HttpResponse Gateway::Refuse(const HttpRequest& request, const HttpError& refused) {
  const Arrival arrival = Receive(request);
  journal_.Refused(arrival.identity, refused);
  ApiError error;
  error.status = refused.status;
  error.message = refused.message;
  error.retry_after_seconds = refused.retry_after_seconds;
  if (refused.status >= 500) error.type = "server_error";
  if (refused.status == 503) error.code = "overloaded";
  return WithHeaders(InShapeOf(arrival.route, arrival.identity, error.ToResponse()), arrival.headers);
}

std::vector<Watchdog::Check> Gateway::Checks() const {
  return {{"a handler thread", [this] { return handling_.Longest(); }},
          {"a thread for large requests", [this] { return heavy_.Silence(); }},
          {"a thread that compiles schemas", [this] { return completions_.Silence(); }},
          {"a thread that takes events of answers", [this] { return router_->Silence(); }}};
}

std::unique_ptr<Dialect> Gateway::MakeDialect(const Route& route, const RequestIdentity& identity) {
  if (route.path == "/v1/messages") return std::make_unique<MessagesDialect>(identity.id);
  if (route.path == "/v1/responses") return std::make_unique<ResponsesDialect>(&responses_, identity.client);
  return std::make_unique<OpenAiDialect>(route.path == "/v1/chat/completions");
}

void Gateway::Handle(HttpRequest request, HttpResponder responder) {
  const WorkClock::Work work(&handling_);
  Arrival arrival = Receive(request);
  responder.AddHeaders(arrival.headers);
  const Route* const route = arrival.route;
  const bool right_method = route != nullptr && route->Takes(request.method);
  std::shared_ptr<Access::Grant> grant;
  std::optional<ApiError> refusal = CheckKey(request, &arrival);
  const bool stranger = refusal.has_value();
  const RequestIdentity& identity = arrival.identity;
  if (!refusal && right_method && route->metered) refusal = access_->Admit(identity.client, &grant);
  // What needs an administrator; where there are no keys, all clients may what is the operator's anyway.
  if (!refusal && right_method && route->manages && !grant->limits().admin &&
      !(route->admin && identity.client.empty())) {
    refusal = NoAdmin();
  }
  if (refusal) refusals_.Add({{"reason", refusal->code}});
  if (!refusal && right_method && route->completion) {
    const std::weak_ptr<Access::Grant> place = grant;
    completions_.Serve(MakeDialect(*route, identity), std::move(request), identity, place,
                       std::move(responder),
                       [this, identity, grant = std::move(grant)](const CompletionOutcome& outcome) mutable {
                         // Now, and not with the last reference to this call, which may outlive everything.
                         const std::shared_ptr<Access::Grant> ended = std::move(grant);
                         if (!outcome.refused) {
                           ended->ChargeTokens(outcome.prompt_tokens + outcome.completion_tokens);
                           ended->ChargeRequests(outcome.prompts - 1);
                         }
                         journal_.Completed(identity, outcome);
                       });
    return;
  }
  const bool slow =
      route != nullptr && (route->manages || request.body.size() > Completions::kLightBodyBytes);
  if (!refusal && right_method && route->metered && slow) {
    return AnswerOnPool(std::move(request), *route, identity, std::move(grant), std::move(responder));
  }
  HttpResponse response = arrival.preflight  ? NoContent()
                          : refusal          ? refusal->ToResponse()
                          : route == nullptr ? NoSuchPath(request)
                          : !right_method    ? WrongMethod(request, *route)
                                             : Answer(request, *route, identity);
  if (stranger) {
    journal_.Refused(identity, {.status = refusal->status, .message = refusal->message});
  } else {
    journal_.Answered(identity, response, route != nullptr && route->quiet);
  }
  grant.reset();  // before the answer: a client that has it may ask again
  responder.Respond(InShapeOf(route, identity, std::move(response)));
}

void Gateway::AnswerOnPool(HttpRequest request, const Route& route, const RequestIdentity& identity,
                           std::shared_ptr<Access::Grant> grant, HttpResponder responder) {
  const absl::Duration since = absl::FromChrono(std::chrono::steady_clock::now() - request.began);
  const absl::Time deadline = MonotonicNow() - since + options_.completions.request_timeout;
  const auto task = heavy_.Make(deadline, [this, &route, identity, responder, request = std::move(request),
                                           grant = std::move(grant)](WorkPool::Task& running) mutable {
    HttpResponse response;
    if (running.stopped().ok()) response = Answer(request, route, identity);
    if (const absl::Status stopped = running.stopped(); !stopped.ok()) {
      response = FromGrpcStatus(ToGrpc(stopped)).ToResponse();
    }
    journal_.Answered(identity, response, route.quiet);
    grant.reset();
    responder.Respond(InShapeOf(&route, identity, std::move(response)));
  });
  responder.OnDisconnect([weak = std::weak_ptr<WorkPool::Task>(task)] {
    if (const auto waiting = weak.lock()) waiting->Stop(absl::CancelledError("the client has gone"));
  });
  heavy_.Start(task);
}

HttpResponse Gateway::Answer(const HttpRequest& request, const Route& asked,
                             const RequestIdentity& identity) {
  const absl::string_view route = asked.path;
  if (route == "/") return Page();
  if (route == "/v1/models") return Models();
  if (route == "/v1/models/*")
    return Model(PercentDecode(absl::StripPrefix(CanonicalPath(request.path), "/v1/models/")));
  if (route == "/tokenize") {
    return ServeTokenize(*models_, request.body,
                         [this](const std::string& name) { return router_->State(name).max_context; });
  }
  if (route == "/v1/responses/*") {
    const std::string id = PercentDecode(absl::StripPrefix(CanonicalPath(request.path), "/v1/responses/"));
    return request.method == "DELETE" ? DeleteResponse(&responses_, identity.client, id)
                                      : GetResponse(&responses_, identity.client, id, request.query);
  }
  if (route == "/v1/messages/count_tokens") {
    HttpResponse response;
    const std::optional<ApiError> error = CountTokens(*models_, request.body, &response);
    return error ? error->ToResponse() : response;
  }
  if (route == "/v1/load_lora_adapter") return ServeLoadAdapter(*models_, *router_, request.body);
  if (route == "/v1/unload_lora_adapter") return ServeUnloadAdapter(*models_, *router_, request.body);
  if (route == "/detokenize") return ServeDetokenize(*models_, request.body);
  if (route == "/ready") return Ready(request);
  if (route == "/version") return JsonResponse(200, {{"version", ALUDEL_VERSION}});
  if (route == "/metrics") {
    HttpResponse response;
    response.content_type = Metrics::kContentType;
    response.body = metrics_->Render();
    return response;
  }
  if (route == "/openapi.json") return JsonResponse(200, OpenApi());
  if (route == "/docs") return DocsPage();
  if (const auto admin = AnswerAdmin(request)) return *admin;
  if (route == "/health") return Health();
  return FromGrpcStatus({grpc::StatusCode::INTERNAL, absl::StrCat("nothing answers the route ", route)})
      .ToResponse();
}

HttpResponse Gateway::Health() const {
  const absl::Status health = options_.health ? options_.health() : absl::OkStatus();
  return JsonResponse(health.ok() ? 200 : 503,
                      {{"status", health.ok() ? "ok" : std::string(health.message())}});
}

HttpResponse Gateway::Models() const {
  ordered_json list = ordered_json::array();
  for (const auto& model : models_->all()) {
    list.push_back(ModelJson(model->name, *model, *router_));
    for (const std::string& adapter : router_->targets().Adapters(model->name)) {
      if (models_->Find(adapter) == model.get()) list.push_back(ModelJson(adapter, *model, *router_));
    }
  }
  return JsonResponse(200, {{"object", "list"}, {"data", std::move(list)}});
}

HttpResponse Gateway::Model(absl::string_view id) const {
  const ServedModel* model = models_->Find(id);
  if (model == nullptr) return ModelNotFound(id).ToResponse();
  return JsonResponse(200, ModelJson(std::string(id), *model, *router_));
}

std::optional<HttpResponse> Gateway::AnswerAdmin(const HttpRequest& request) const {
  const Route* const route = FindRoute(request.path);
  if (route == nullptr || !route->admin || route->path == "/metrics") return std::nullopt;
  if (!route->Takes(request.method)) return WrongMethod(request, *route);
  if (route->path == "/load") return Load();
  if (route->path == "/server_info") return ServerInfo();
  if (route->path == "/admin/routing") return Routing(request.query);
  return ResetCache();
}

// One broken model must not take the others out of rotation.
absl::Status Gateway::CheckReady(absl::string_view model) const {
  if (draining_) return absl::UnavailableError("draining");
  if (options_.health) {
    if (absl::Status health = options_.health(); !health.ok()) return health;
  }
  std::string reasons;
  for (const auto& served : models_->all()) {
    if (!model.empty() && model != served->name) continue;
    const Router::ModelState state = router_->State(served->name);
    if (state.ready) return absl::OkStatus();
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", served->name, ": ", state.reason);
  }
  return absl::UnavailableError(reasons.empty() ? "no such model" : reasons);
}

HttpResponse Gateway::Ready(const HttpRequest& request) const {
  const bool ready = CheckReady(QueryParameter(request.query, "model").value_or("")).ok();
  ordered_json states = ordered_json::object();
  for (const auto& model : models_->all()) {
    const Router::ModelState state = router_->State(model->name);
    states[model->name] = state.ready ? std::string("ready") : state.reason;
  }
  return JsonResponse(ready ? 200 : 503, {{"status", ready       ? "ready"
                                                     : draining_ ? "draining"
                                                                 : "not ready"},
                                          {"models", std::move(states)}});
}

}  // namespace aludel
