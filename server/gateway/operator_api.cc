#include "server/gateway/operator_api.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "runtime/text/constrain/ordered_json.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/grpc_error.h"
#include "server/gateway/openai/prompt.h"
#include "server/gateway/route_refusals.h"
#include "server/gateway/routing/routing_json.h"
#include "server/rpc/cache_salt.h"
#include "server/rpc/reset_caches.h"
#include "server/rpc/rpc_status.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

// For all decode servers to reset their caches; they wait less for their prefill servers.
constexpr absl::Duration kResetTimeout = absl::Seconds(10);

// What a query names as a prompt, as tokens: the text of a plain completion, or a chat's messages and tools.
std::optional<ApiError> PromptOf(const ServedModel& model, const std::string& name, absl::string_view query,
                                 std::vector<int32_t>* ids) {
  ordered_json chat = {{"model", name}};
  for (const char* field : {"messages", "tools"}) {
    const auto value = QueryParameter(query, field);
    if (!value) continue;
    absl::StatusOr<ordered_json> parsed = ParseOrdered(*value);
    if (!parsed.ok()) return FromStatus(field, parsed.status());
    chat[field] = *std::move(parsed);
  }
  if (chat.contains("messages")) return TokenizeChat(model, chat, ids);
  return TokenizeText(model, "prompt", QueryParameter(query, "prompt").value_or(""),
                      /*add_special_tokens=*/true,
                      /*joint=*/"", ids);
}

}  // namespace

HttpResponse OperatorApi::ResetCache() const {
  const std::vector<std::shared_ptr<DecodeTarget>> targets = router_->targets().all();
  std::vector<std::pair<std::string, v1::Decode::Stub*>> servers;
  for (const auto& target : targets) servers.emplace_back(target->name(), target->stub());
  absl::Notification ended;
  absl::Status reset;
  ResetCaches(servers, MonotonicNow() + kResetTimeout, [&](const absl::Status& status) {
    reset = status;
    ended.Notify();
  });
  ended.WaitForNotification();
  for (const auto& target : targets) target->CacheWasReset();
  if (reset.ok()) return JsonResponse(200, {{"status", "reset"}});
  ApiError error = FromGrpcStatus(ToGrpc(reset));
  error.message = absl::StrCat("not reset everywhere: ", error.message);
  return error.ToResponse();
}

// "server_load" is vLLM's.
HttpResponse OperatorApi::Load() const {
  ordered_json models = ordered_json::object();
  int all = 0;
  for (const auto& model : models_->all()) {
    const int running = router_->Outstanding(model->name);
    const int waiting = router_->Waiting(model->name);
    models[model->name] = {{"running", running}, {"waiting", waiting}};
    all += running + waiting;
  }
  return JsonResponse(200, {{"server_load", all}, {"models", std::move(models)}});
}

HttpResponse OperatorApi::ServerInfo() const {
  ordered_json models = ordered_json::object();
  for (const auto& model : models_->all()) {
    const Router::ModelState state = router_->State(model->name);
    models[model->name] = {{"ready", state.ready},
                           {"max_model_len", state.max_context},
                           {"max_choices", state.max_choices},
                           {"formats", router_->Formats(model->name)},
                           {"tokenizer_fingerprint", model->tokenizer->fingerprint()},
                           {"chat_template", model->chat_template != nullptr}};
  }
  return JsonResponse(200, {{"version", ALUDEL_VERSION},
                            {"draining", readiness_->draining()},
                            {"max_requests", options_.max_requests},
                            {"request_timeout_s", absl::ToDoubleSeconds(options_.request_timeout)},
                            {"models", std::move(models)}});
}

HttpResponse OperatorApi::Routing(absl::string_view query) const {
  const std::string name = QueryParameter(query, "model").value_or(models_->all()[0]->name);
  const ServedModel* model = models_->Find(name);
  if (model == nullptr) return ModelNotFound(name).ToResponse();
  std::vector<int32_t> tokens;
  if (auto error = PromptOf(*model, name, query, &tokens)) return error->ToResponse();
  const std::string salt = MakeCacheSalt(QueryParameter(query, "key").value_or(""),
                                         QueryParameter(query, "cache_salt").value_or(""));
  const std::string cache_key = QueryParameter(query, "prompt_cache_key").value_or("");
  const auto explanation =
      router_->Explain(model->name, name == model->name ? "" : name, salt, cache_key, tokens);
  if (!explanation) return ModelNotFound(name).ToResponse();
  return JsonResponse(200, RoutingJson(name, static_cast<int64_t>(tokens.size()), *explanation));
}

std::optional<HttpResponse> OperatorApi::Answer(const HttpRequest& request) const {
  const Route* const route = FindRoute(request.path);
  if (route == nullptr || !route->admin || route->path == "/metrics") return std::nullopt;
  if (!route->Takes(request.method)) return WrongMethod(request, *route);
  if (route->path == "/load") return Load();
  if (route->path == "/server_info") return ServerInfo();
  if (route->path == "/admin/routing") return Routing(request.query);
  return ResetCache();
}

}  // namespace aludel
