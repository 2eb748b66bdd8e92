#include "server/gateway/routing/routing_json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

namespace aludel {
namespace {

using nlohmann::ordered_json;

const char* Name(ReplicaView::Standing standing) {
  switch (standing) {
    case ReplicaView::Standing::kReady:
      return "ready";
    case ReplicaView::Standing::kSpare:
      return "spare";
    case ReplicaView::Standing::kOut:
      return "out";
  }
  return "unknown";
}

// JSON has no infinity.
ordered_json Seconds(double seconds) {
  if (!std::isfinite(seconds)) return nullptr;
  return std::round(seconds * 1e6) / 1e6;
}

}  // namespace

ordered_json RoutingJson(const std::string& model, int64_t prompt_tokens,
                         const DecodeTargets::Explanation& explanation) {
  const ModelFleet::Explanation& choice = explanation.choice;
  const auto name = [&](std::optional<size_t> slot) -> ordered_json {
    if (!slot) return nullptr;
    return explanation.names[*slot];
  };
  ordered_json targets = ordered_json::array();
  for (size_t slot = 0; slot < choice.views.size(); ++slot) {
    if (explanation.names[slot].empty()) continue;
    const ReplicaView& view = choice.views[slot];
    const std::optional<double> age = choice.report_age[slot];
    const int64_t cached = std::min(view.cached_tokens, std::max<int64_t>(0, prompt_tokens - 1));
    targets.push_back({{"target", explanation.names[slot]},
                       {"standing", Name(view.standing)},
                       {"weight", view.weight},
                       {"requests", view.pending},
                       {"report_age_s", age ? Seconds(*age) : nullptr},
                       {"wait_s", Seconds(view.wait_seconds)},
                       {"prefill_s", Seconds(view.costs.Seconds(prompt_tokens, cached))},
                       {"cached_tokens", view.cached_tokens},
                       {"cached_tokens_exact", static_cast<bool>(choice.exact[slot])},
                       {"predicted_ttft_s", Seconds(PredictTtft(view, prompt_tokens))}});
  }
  return {{"model", model},
          {"prompt_tokens", prompt_tokens},
          {"key_tokens", choice.key_tokens},
          {"first", name(choice.decision.candidates.first)},
          {"second", name(choice.decision.candidates.second)},
          {"chosen", name(choice.decision.replica)},
          {"reason", aludel::Name(choice.decision.reason)},
          {"targets", std::move(targets)}};
}

}  // namespace aludel
