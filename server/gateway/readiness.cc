#include "server/gateway/readiness.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {

using nlohmann::ordered_json;

HttpResponse Readiness::Health() const {
  const absl::Status health = health_ ? health_() : absl::OkStatus();
  return JsonResponse(health.ok() ? 200 : 503,
                      {{"status", health.ok() ? "ok" : std::string(health.message())}});
}

// One broken model must not take the others out of rotation.
absl::Status Readiness::Check(absl::string_view model) const {
  if (draining_) return absl::UnavailableError("draining");
  if (health_) {
    if (absl::Status health = health_(); !health.ok()) return health;
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

HttpResponse Readiness::Ready(const HttpRequest& request) const {
  const bool ready = Check(QueryParameter(request.query, "model").value_or("")).ok();
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
