#include "server/gateway/gateway.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/gateway/prompt.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

struct Route {
  absl::string_view path;  // a trailing "*" stands for the rest
  absl::string_view method;
};
constexpr Route kRoutes[] = {
    {"/v1/chat/completions", "POST"},
    {"/v1/completions", "POST"},
    {"/v1/models", "GET"},
    {"/v1/models/*", "GET"},
    {"/tokenize", "POST"},
    {"/detokenize", "POST"},
    {"/health", "GET"},
    {"/ready", "GET"},
    {"/version", "GET"},
    {"/metrics", "GET"},
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

HttpResponse Json(int status, const ordered_json& body) {
  HttpResponse response;
  response.status = status;
  response.body = Dump(body);
  return response;
}

ordered_json ModelJson(const ServedModel& model, uint64_t max_context) {
  ordered_json json = {
      {"id", model.name}, {"object", "model"}, {"created", model.created}, {"owned_by", "aludel"}};
  if (max_context > 0) json["max_model_len"] = max_context;
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

Gateway::Gateway(Completions::Options options, const ServedModels* models, Router* router, Metrics* metrics)
    : models_(models),
      router_(router),
      metrics_(metrics),
      completions_(std::move(options), models, router, metrics) {}

void Gateway::Handle(HttpRequest request, HttpResponder responder) {
  const Route* route = FindRoute(request.path);
  const std::string request_id = RequestId(request);
  // Unknown paths share one label, so that no client can grow our metrics.
  const std::string label(route == nullptr ? "other" : route->path);
  auto count = [this, label](int status) { metrics_->CountHttpRequest(label, status); };
  const bool right_method = route != nullptr && (request.method == route->method ||
                                                 (request.method == "HEAD" && route->method == "GET"));
  if (right_method && (label == "/v1/chat/completions" || label == "/v1/completions")) {
    completions_.Serve(label == "/v1/chat/completions", request, request_id, std::move(responder),
                       std::move(count));
    return;
  }
  HttpResponse response = route == nullptr ? NoSuchPath(request)
                          : !right_method  ? WrongMethod(request, *route)
                                           : Answer(request, route->path);
  response.headers.push_back({"x-request-id", request_id});
  count(response.status);
  responder.Respond(std::move(response));
}

HttpResponse Gateway::Answer(const HttpRequest& request, absl::string_view route) {
  if (route == "/v1/models") return Models();
  if (route == "/v1/models/*") return Model(PercentDecode(absl::StripPrefix(request.path, "/v1/models/")));
  if (route == "/tokenize") return ServeTokenize(*models_, request.body);
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
    list.push_back(ModelJson(*model, router_->State(model->name).max_context));
  }
  return Json(200, {{"object", "list"}, {"data", std::move(list)}});
}

HttpResponse Gateway::Model(absl::string_view id) const {
  const ServedModel* model = models_->Find(id);
  if (model == nullptr) return ModelNotFound(id).ToResponse();
  return Json(200, ModelJson(*model, router_->State(model->name).max_context));
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
