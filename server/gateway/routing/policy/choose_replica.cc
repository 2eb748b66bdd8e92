#include "server/gateway/routing/policy/choose_replica.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "server/gateway/routing/policy/prefix_keys.h"

namespace aludel {
namespace {

// Inline: a decision computes it for each replica.
inline double PrefillSeconds(const ReplicaView& view, int64_t prompt_tokens) {
  return view.costs.Seconds(
      prompt_tokens, std::clamp<int64_t>(view.cached_tokens, 0, std::max<int64_t>(0, prompt_tokens - 1)));
}

// Its TTFT, and its prefill once more, because what is queued after it waits for that. By TTFT alone a conversation leaves
// its cache for a queue that is a little shorter; at capacity the work of computing it again makes all queues longer.
double Cost(const ReplicaView& view, int64_t prompt_tokens) {
  const double seconds = (view.wait_seconds + 2 * PrefillSeconds(view, prompt_tokens)) / view.weight;
  return seconds >= 0 ? seconds : std::numeric_limits<double>::infinity();
}

RoutingDecision LeastPending(absl::Span<const ReplicaView> views, ReplicaView::Standing standing) {
  RoutingDecision decision{.reason = RoutingReason::kLeastPending};
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].standing != standing) continue;
    if (!decision.replica || views[i].pending < views[*decision.replica].pending) decision.replica = i;
  }
  return decision;
}

RoutingDecision RoundRobin(uint64_t turn, absl::Span<const ReplicaView> views,
                           ReplicaView::Standing standing) {
  uint64_t left = turn % static_cast<uint64_t>(std::count_if(
                             views.begin(), views.end(),
                             [standing](const ReplicaView& view) { return view.standing == standing; }));
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].standing == standing && left-- == 0)
      return {.replica = i, .reason = RoutingReason::kRoundRobin};
  }
  return {};
}

// Of equals the one with fewer requests, then by the key, so that gateways do not all take the same one.
size_t LeastCostly(const RoutingQuery& query, absl::Span<const ReplicaView> views,
                   ReplicaView::Standing standing) {
  using Rank = std::tuple<double, int, uint64_t>;
  size_t best = 0;
  std::optional<Rank> best_rank;
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].standing != standing) continue;
    const double cost = Cost(views[i], query.prompt_tokens);
    if (best_rank && cost > std::get<0>(*best_rank)) continue;
    const Rank rank = {cost, views[i].pending, ~MixBits(query.key ^ views[i].id)};
    if (!best_rank || rank < *best_rank) {
      best = i;
      best_rank = rank;
    }
  }
  return best;
}

// The one with most of the prompt; nothing where none has any of it.
std::optional<size_t> MostCached(absl::Span<const ReplicaView> views, ReplicaView::Standing standing) {
  std::optional<size_t> best;
  int64_t most = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].cached_tokens <= most || views[i].standing != standing) continue;
    best = i;
    most = views[i].cached_tokens;
  }
  return best;
}

RoutingDecision ByPrefix(const RoutingQuery& query, absl::Span<const ReplicaView> views,
                         ReplicaView::Standing standing) {
  RoutingDecision decision;
  double least = std::numeric_limits<double>::infinity();
  const bool any_keeps = std::any_of(views.begin(), views.end(), [standing](const ReplicaView& view) {
    return view.standing == standing && view.keeps_prefixes;
  });
  decision.candidates = PickPair(query.key, views.size(), [&](size_t i) {
    const bool home = views[i].standing == standing && (views[i].keeps_prefixes || !any_keeps);
    return RendezvousMember{views[i].id, home ? views[i].weight : 0};
  });
  const auto offer = [&](std::optional<size_t> i, RoutingReason reason, double margin = 0) {
    if (!i) return;
    const double cost = Cost(views[*i], query.prompt_tokens);
    if (decision.replica && !(cost + margin < least)) return;
    decision.replica = i;
    decision.reason = reason;
    decision.predicted_ttft = PredictTtft(views[*i], query.prompt_tokens);
    least = cost;
  };
  // Requests of a client's key stay together also where their prompts' beginnings differ or are everywhere: not for the
  // shorter of two short queues, nor for a system prompt that another server has, but for a long prompt that it has.
  const double stay = query.key_says ? kSpillMargin * query.objective_seconds : 0;
  offer(decision.candidates.first, RoutingReason::kFirst);
  offer(decision.candidates.second, RoutingReason::kSecond, stay);
  offer(MostCached(views, standing), RoutingReason::kCached, stay);
  // Not only once those miss the objective: at capacity nothing makes up for servers that idle until then. Nor by less because
  // they miss it, unless that meets it: past capacity all queues are long, what is believed of them is wrong by more than
  // they differ, and a conversation that leaves its cache for that makes all of them longer. Also where weights that are not
  // numbers leave no pair.
  const size_t least_costly = LeastCostly(query, views, standing);
  const bool saves = decision.predicted_ttft > query.objective_seconds &&
                     PredictTtft(views[least_costly], query.prompt_tokens) <= query.objective_seconds;
  offer(least_costly, RoutingReason::kSpill, saves ? 0 : kSpillMargin * query.objective_seconds);
  return decision;
}

}  // namespace

std::optional<RoutingPolicy> ParseRoutingPolicy(absl::string_view name) {
  if (name == "prefix") return RoutingPolicy::kPrefix;
  if (name == "least_pending") return RoutingPolicy::kLeastPending;
  if (name == "round_robin") return RoutingPolicy::kRoundRobin;
  return std::nullopt;
}

const char* Name(RoutingReason reason) {
  switch (reason) {
    case RoutingReason::kNone:
      return "none";
    case RoutingReason::kFirst:
      return "first";
    case RoutingReason::kSecond:
      return "second";
    case RoutingReason::kCached:
      return "cached";
    case RoutingReason::kSpill:
      return "spill";
    case RoutingReason::kLeastPending:
      return "least_pending";
    case RoutingReason::kRoundRobin:
      return "round_robin";
  }
  return "unknown";
}

double PredictTtft(const ReplicaView& view, int64_t prompt_tokens) {
  const double seconds = (view.wait_seconds + PrefillSeconds(view, prompt_tokens)) / view.weight;
  return seconds >= 0 ? seconds : std::numeric_limits<double>::infinity();
}

ReplicaView::Standing ChosenFrom(absl::Span<const ReplicaView> views) {
  for (const auto standing : {ReplicaView::Standing::kReady, ReplicaView::Standing::kSpare}) {
    if (std::any_of(views.begin(), views.end(),
                    [standing](const ReplicaView& view) { return view.standing == standing; })) {
      return standing;
    }
  }
  return ReplicaView::Standing::kOut;
}

RoutingDecision ChooseReplica(const RoutingQuery& query, absl::Span<const ReplicaView> views) {
  const ReplicaView::Standing standing = ChosenFrom(views);
  if (standing == ReplicaView::Standing::kOut) return {};
  switch (query.policy) {
    case RoutingPolicy::kPrefix:
      return ByPrefix(query, views, standing);
    case RoutingPolicy::kLeastPending:
      return LeastPending(views, standing);
    case RoutingPolicy::kRoundRobin:
      return RoundRobin(query.turn, views, standing);
  }
  return {};
}

}  // namespace aludel
