#include "server/gateway/gateway.h"

#include <utility>

#include "server/gateway/anthropic/messages_dialect.h"
#include "server/gateway/openai/grpc_error.h"
#include "server/gateway/openai/openai_dialect.h"
#include "server/gateway/responses/responses_dialect.h"
#include "server/gateway/route_refusals.h"
#include "server/rpc/rpc_status.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Large bodies, beside the threads that answer all others. Tokenizing one of four megabytes takes up to
// 250 MB.
constexpr int kHeavyThreads = 2;
constexpr size_t kMaxQueuedHeavy = 64;

HttpResponse NoContent() {
  HttpResponse response;
  response.status = 204;
  return response;
}

HttpResponse WithHeaders(HttpResponse response, const std::vector<HttpHeader>& more) {
  response.headers.insert(response.headers.end(), more.begin(), more.end());
  return response;
}

std::unique_ptr<Dialect> MakeDialect(const Route& route, const RequestIdentity& identity,
                                     ResponseStore* responses) {
  if (route.path == "/v1/messages") return std::make_unique<MessagesDialect>(identity.id);
  if (route.path == "/v1/responses") return std::make_unique<ResponsesDialect>(responses, identity.client);
  return std::make_unique<OpenAiDialect>(route.path == "/v1/chat/completions");
}

}  // namespace

Gateway::Gateway(Options options, Access* access, const ServedModels* models, Router* router,
                 Metrics* metrics, OtlpExporter* traces)
    : options_(std::move(options)),
      cors_(options_.cors_allowed_origins),
      access_(access),
      router_(router),
      refusals_(metrics->Counter("aludel_http_refusals_total",
                                 "Requests turned away for their key or its limits, by reason.")),
      journal_(metrics, traces),
      heavy_({.name = "large requests", .threads = kHeavyThreads, .max_queue = kMaxQueuedHeavy}),
      readiness_(options_.health, models, router),
      responses_(options_.responses),
      local_({.max_requests = options_.completions.max_requests,
              .request_timeout = options_.completions.request_timeout},
             models, router, &readiness_, &responses_, metrics),
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

std::optional<HttpResponse> Gateway::CheckHead(const HttpRequest& request) {
  Arrival arrival = Receive(request, cors_, options_.serves_admin, options_.trace_share);
  std::optional<HttpResponse> response;
  if (const std::optional<ApiError> stranger = CheckKey(*access_, request, &arrival)) {
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
  const Arrival arrival = Receive(request, cors_, options_.serves_admin, options_.trace_share);
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

void Gateway::Handle(HttpRequest request, HttpResponder responder) {
  const WorkClock::Work work(&handling_);
  Arrival arrival = Receive(request, cors_, options_.serves_admin, options_.trace_share);
  responder.AddHeaders(arrival.headers);
  const Route* const route = arrival.route;
  const bool right_method = route != nullptr && route->Takes(request.method);
  std::shared_ptr<Access::Grant> grant;
  std::optional<ApiError> refusal = CheckKey(*access_, request, &arrival);
  const bool stranger = refusal.has_value();
  if (!refusal && right_method) refusal = Admit(arrival, access_, &grant);
  if (refusal) refusals_.Add({{"reason", refusal->code}});
  if (!refusal && right_method) {
    if (route->completion) {
      return Complete(std::move(request), arrival, std::move(grant), std::move(responder));
    }
    if (route->metered && (route->manages || request.body.size() > Completions::kLightBodyBytes)) {
      return AnswerOnPool(std::move(request), arrival, std::move(grant), std::move(responder));
    }
  }
  HttpResponse response = arrival.preflight  ? NoContent()
                          : refusal          ? refusal->ToResponse()
                          : route == nullptr ? NoSuchPath(request)
                          : !right_method    ? WrongMethod(request, *route)
                                             : local_.Answer(request, *route, arrival.identity);
  if (stranger) {
    journal_.Refused(arrival.identity, {.status = refusal->status, .message = refusal->message});
  } else {
    journal_.Answered(arrival.identity, response, route != nullptr && route->quiet);
  }
  grant.reset();  // before the answer: a client that has it may ask again
  responder.Respond(InShapeOf(route, arrival.identity, std::move(response)));
}

void Gateway::Complete(HttpRequest request, const Arrival& arrival, std::shared_ptr<Access::Grant> grant,
                       HttpResponder responder) {
  const std::weak_ptr<Access::Grant> place = grant;
  completions_.Serve(MakeDialect(*arrival.route, arrival.identity, &responses_), std::move(request),
                     arrival.identity, place, std::move(responder),
                     [this, identity = arrival.identity,
                      grant = std::move(grant)](const CompletionOutcome& outcome) mutable {
                       // Now, and not with the last reference to this call, which may outlive everything.
                       const std::shared_ptr<Access::Grant> ended = std::move(grant);
                       if (!outcome.refused) {
                         ended->ChargeTokens(outcome.prompt_tokens + outcome.completion_tokens);
                         ended->ChargeRequests(outcome.prompts - 1);
                       }
                       journal_.Completed(identity, outcome);
                     });
}

void Gateway::AnswerOnPool(HttpRequest request, const Arrival& arrival, std::shared_ptr<Access::Grant> grant,
                           HttpResponder responder) {
  const absl::Duration since = absl::FromChrono(std::chrono::steady_clock::now() - request.began);
  const absl::Time deadline = MonotonicNow() - since + options_.completions.request_timeout;
  const auto task = heavy_.Make(
      deadline, [this, &route = *arrival.route, identity = arrival.identity, responder,
                 request = std::move(request), grant = std::move(grant)](WorkPool::Task& running) mutable {
        HttpResponse response;
        if (running.stopped().ok()) response = local_.Answer(request, route, identity);
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

}  // namespace aludel
