#include "server/gateway/front.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "server/gateway/anthropic/anthropic_error.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/routes.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr int kRetrySeconds = 2;
constexpr char kWaiting[] = "waiting";
constexpr char kLoading[] = "loading";
constexpr char kLoaded[] = "loaded";

}  // namespace

Front::Front(const std::vector<std::string>& models, Metrics* metrics) : metrics_(metrics) {
  absl::MutexLock lock(&mutex_);
  for (const std::string& model : models) states_[model] = kWaiting;
}

std::shared_ptr<const Front::Behind> Front::behind() const {
  absl::MutexLock lock(&mutex_);
  return behind_;
}

void Front::Open(Gateway* gateway) {
  auto behind = std::make_shared<Behind>();
  behind->gateway = gateway;
  behind->handle = gateway->Bind(&behind->callbacks);
  absl::MutexLock lock(&mutex_);
  behind_ = std::move(behind);
}

void Front::Loads(const std::string& model, bool loaded) {
  absl::MutexLock lock(&mutex_);
  states_[model] = loaded ? kLoaded : kLoading;
}

std::string Front::Missing() const {
  std::vector<std::string> missing;
  absl::MutexLock lock(&mutex_);
  for (const auto& [model, state] : states_) {
    if (state != kLoaded) missing.push_back(model);
  }
  if (missing.empty()) return "its routes";  // which takes a moment
  return absl::StrCat("the tokenizers of ", absl::StrJoin(missing, ", "));
}

absl::Status Front::CheckReady() const {
  if (const auto open = behind()) return open->gateway->CheckReady();
  return absl::UnavailableError(absl::StrCat("loading ", Missing()));
}

std::optional<HttpResponse> Front::AnswerAdmin(const HttpRequest& request) const {
  if (const auto open = behind()) return open->gateway->AnswerAdmin(request);
  const Route* const route = FindRoute(request.path);
  if (route == nullptr || !route->admin || route->path == "/metrics") return std::nullopt;
  return AnswerLoading(request);
}

absl::StatusOr<std::unique_ptr<HttpServer>> Front::Listen(HttpServerOptions options) {
  options.check_head = [this](const HttpRequest& request) -> std::optional<HttpResponse> {
    if (const auto open = behind()) return open->callbacks.check_head(request);
    return AnswerLoading(request);
  };
  options.refuse = [this](const HttpRequest& request, const HttpError& error) {
    if (const auto open = behind()) return open->callbacks.refuse(request, error);
    return RefuseLoading(request, error);
  };
  options.at_once = [this](const HttpRequest& request) {
    const auto open = behind();
    return open == nullptr || open->callbacks.at_once(request);
  };
  return HttpServer::Start(options, [this](HttpRequest request, HttpResponder responder) {
    if (const auto open = behind()) return open->handle(std::move(request), std::move(responder));
    responder.Respond(AnswerLoading(request));
  });
}

HttpResponse Front::AnswerLoading(const HttpRequest& request) const {
  const std::string path = CanonicalPath(request.path);
  if (path == "/health") return JsonResponse(200, {{"status", "ok"}});
  if (path == "/ready") {
    ordered_json states = ordered_json::object();
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [model, state] : states_) states[model] = state;
    }
    return JsonResponse(503, {{"status", "loading"}, {"models", std::move(states)}});
  }
  if (path == "/metrics" && metrics_ != nullptr) {
    HttpResponse response;
    response.content_type = Metrics::kContentType;
    response.body = metrics_->Render();
    return response;
  }
  ApiError error;
  error.status = 503;
  error.type = "server_error";
  error.code = "loading";
  error.message = absl::StrCat("The gateway has just started and loads ", Missing(), "; ask again soon");
  error.retry_after_seconds = kRetrySeconds;
  const Route* const route = FindRoute(path);
  return route != nullptr && route->anthropic ? AnthropicRefusal(error, /*request_id=*/"")
                                              : error.ToResponse();
}

HttpResponse Front::RefuseLoading(const HttpRequest& request, const HttpError& refused) const {
  ApiError error;
  error.status = refused.status;
  error.message = refused.message;
  error.retry_after_seconds = refused.retry_after_seconds;
  if (refused.status >= 500) error.type = "server_error";
  const Route* const route = FindRoute(CanonicalPath(request.path));
  return route != nullptr && route->anthropic ? AnthropicRefusal(error, /*request_id=*/"")
                                              : error.ToResponse();
}

}  // namespace aludel
