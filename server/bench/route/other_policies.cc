#include "server/bench/route/other_policies.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "server/gateway/routing/policy/prefix_keys.h"

namespace aludel {
namespace {

constexpr const char* kOtherPolicies[] = {"hash", "dualmap", "lmetric", "least_ttft", kLeastTtftExact};

template <typename Score>
std::optional<size_t> Least(absl::Span<const ReplicaView> views, const Score& score) {
  std::optional<size_t> best;
  double least = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].standing != ReplicaView::Standing::kReady) continue;
    const double value = score(views[i]);
    if (!best || value < least) std::tie(best, least) = std::pair(i, value);
  }
  return best;
}

std::optional<size_t> Home(uint64_t key, absl::Span<const ReplicaView> views,
                           std::optional<size_t> but = {}) {
  return PickPair(key, views.size(),
                  [&](size_t i) {
                    const bool in = views[i].standing == ReplicaView::Standing::kReady && i != but;
                    return RendezvousMember{views[i].id, in ? 1.0 : 0.0};
                  })
      .first;
}

// Two independent hashes; the one with more of the prompt, unless it misses the objective, then the less loaded.
std::optional<size_t> DualMap(uint64_t key, int64_t tokens, double objective,
                              absl::Span<const ReplicaView> views) {
  const std::optional<size_t> one = Home(key, views);
  if (!one) return one;
  const std::optional<size_t> two = Home(MixBits(key), views, one);
  if (!two) return one;
  const bool more = views[*two].cached_tokens > views[*one].cached_tokens;
  const size_t reuse = more ? *two : *one;
  if (PredictTtft(views[reuse], tokens) <= objective) return reuse;
  return views[*two].wait_seconds < views[*one].wait_seconds ? two : one;
}

}  // namespace

bool IsOtherPolicy(const std::string& policy) {
  return std::find(std::begin(kOtherPolicies), std::end(kOtherPolicies), policy) != std::end(kOtherPolicies);
}

std::optional<size_t> ChooseOtherwise(const std::string& policy, uint64_t key, int64_t prompt_tokens,
                                      double objective_seconds, absl::Span<const ReplicaView> views) {
  std::optional<size_t> choice;
  if (policy == "hash") {
    choice = Home(key, views);
  } else if (policy == "dualmap") {
    choice = DualMap(key, prompt_tokens, objective_seconds, views);
  } else if (policy == "lmetric") {
    choice = Least(views, [prompt_tokens](const ReplicaView& view) {
      const double prefill = view.wait_seconds + view.costs.Seconds(prompt_tokens, view.cached_tokens);
      return prefill * (view.pending + 1);
    });
  } else {
    choice =
        Least(views, [prompt_tokens](const ReplicaView& view) { return PredictTtft(view, prompt_tokens); });
  }
  // All may be full.
  return choice ? choice : ChooseReplica({.policy = RoutingPolicy::kLeastPending}, views).replica;
}

}  // namespace aludel
