#include "server/decode/plan/planner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "server/rpc/rpc_fields.h"
#include "server/rpc/slow_start.h"

namespace aludel {
namespace {

bool Contains(absl::Span<const std::string> all, const std::string& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

bool Contains(const std::vector<FormatOffer>& all, const FormatOffer& one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

Plan Local(PlanReason reason) { return Plan{.reason = reason}; }

// Indices of the targets to consider, best first.
std::vector<size_t> Order(absl::Span<const PlanTarget> targets, const std::vector<std::string>& preferred) {
  std::vector<size_t> order;
  for (const std::string& name : preferred) {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (targets[i].name == name && !targets[i].gone) order.push_back(i);
    }
  }
  // None asked for, or none of them known here: our own order.
  if (order.empty()) {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (!targets[i].gone) order.push_back(i);
    }
  }
  return order;
}

bool Allows(const PlannerOptions& options, Fidelity fidelity, const std::string& format) {
  if (fidelity == Fidelity::kFast) return true;
  const auto loss = options.losses.find(format);
  if (loss == options.losses.end()) return false;  // not measured
  return loss->second <= (fidelity == Fidelity::kHigh ? options.high_kl : options.balanced_kl);
}

// What the server's own store can hand over, in the order of formats.
std::vector<Plan> StoredCandidates(const PlannerOptions& options, absl::Span<const std::string> formats,
                                   const PlanRequest& request, Fidelity fidelity, int64_t handed_over,
                                   const StoredHere& stored_here) {
  std::vector<Plan> candidates;
  if (!stored_here || !request.takes_stored) return candidates;
  const bool forced = !request.format.empty();
  const std::string& wanted = forced ? request.format : options.format;
  for (const std::string& format : formats) {
    if (!wanted.empty() && format != wanted) continue;
    if (!forced && !Allows(options, fidelity, format)) continue;
    const int64_t tokens = std::min(stored_here(format), handed_over);
    if (tokens < 1) continue;
    candidates.push_back({.kind = PlanKind::kStored,
                          .target = kOwnStore,
                          .format = format,
                          .handed_over_tokens = tokens,
                          .reason = forced ? PlanReason::kForced : PlanReason::kCoded});
  }
  return candidates;
}

// The ready ones among the targets to consider, those with the least work waiting first.
std::vector<size_t> LeastBusyFirst(absl::Span<const PlanTarget> targets,
                                   const std::vector<std::string>& preferred) {
  std::vector<size_t> order = Order(targets, preferred);
  std::erase_if(order, [&](size_t i) { return !targets[i].ready; });
  // In seconds where every server has said how fast it is.
  const bool rates =
      std::all_of(order.begin(), order.end(), [&](size_t i) { return targets[i].tokens_per_second > 0; });
  const auto work = [&](size_t i) {
    return static_cast<double>(targets[i].waiting_tokens) / (rates ? targets[i].tokens_per_second : 1);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return work(a) < work(b); });
  return order;
}

// Of those in `order` the ones that take the key, or all where none does.
std::vector<size_t> WithoutNew(absl::Span<const PlanTarget> targets, const std::vector<size_t>& order,
                               uint64_t key) {
  std::vector<size_t> taking;
  for (const size_t i : order) {
    if (TakesKey(targets[i].weight, key, HashTexts({targets[i].name}))) taking.push_back(i);
  }
  return taking.empty() ? order : taking;
}

// Handoffs to choose from, best first: by format, then by the work that waits at their target. `limited`: others there
// might be, but for their sites' links.
std::vector<Plan> Candidates(const PlannerOptions& options, absl::Span<const std::string> formats,
                             absl::Span<const PlanTarget> targets, const PlanRequest& request,
                             Fidelity fidelity, int64_t handed_over, bool* limited) {
  const bool forced = !request.format.empty();
  const std::string& wanted = forced ? request.format : options.format;
  std::vector<Plan> candidates;
  const std::vector<size_t> order = LeastBusyFirst(targets, request.targets);
  for (const std::string& format : formats) {
    if (!wanted.empty() && format != wanted) continue;
    if (!forced && !Allows(options, fidelity, format)) continue;
    std::vector<size_t> having;
    for (const size_t i : order) {
      if (!Contains(targets[i].formats, format)) continue;
      if (targets[i].link_open) having.push_back(i);
      *limited |= !targets[i].link_open;
    }
    for (const size_t i : WithoutNew(targets, having, request.key)) {
      candidates.push_back({.kind = PlanKind::kRemote,
                            .target = i,
                            .format = format,
                            .handed_over_tokens = handed_over,
                            .reason = forced ? PlanReason::kForced : PlanReason::kCoded});
    }
  }
  return candidates;
}

// Local prefill is exact and needs no other server, and of many predictions some are too good by chance. A
// handoff must promise to be this much sooner.
constexpr double kSoonerShare = 0.07;
constexpr double kSoonerSeconds = 0.001;

// Of what a prompt takes to compute here, how much its handoff must save with a link that is used up, what it spares others
// counted (CrowdPrice): less of it served simulated days later (tests/bench/RESULTS.md).
constexpr double kLinkPrice = 3;

// What trying a plan may cost the request that tries it, in times of its best plan.
constexpr double kTryWithin = 2;
// A plan that was given up before it was measured is tried again where it may take so many times as long. A short prompt is
// computed here before any handoff could come, which tells nothing of long ones.
constexpr double kLongerTry = 2;

// The soonest of `candidates` and local prefill, which is expected to take `own` seconds and costs others `own_price`.
Plan Soonest(const std::vector<Plan>& candidates, double own, double own_price) {
  Plan best = Local(PlanReason::kFastest);
  best.predicted_ttft = own;
  double to_beat = own + own_price - std::max(kSoonerShare * own, kSoonerSeconds);
  for (const Plan& plan : candidates) {
    if (!plan.predicted_ttft || *plan.predicted_ttft + plan.price >= to_beat) continue;
    to_beat = *plan.predicted_ttft + plan.price;
    best = plan;
  }
  return best;
}

// Has `plan`, which is tried in place of `best`, replaced in time for a first token within kTryWithin: by local
// prefill, or, where it is not expected by then, by its format from the best server.
void Bound(const Plan& best, double own, bool expected, Plan* plan) {
  const double within = kTryWithin * *best.predicted_ttft;
  if (own <= within) {
    plan->hedge_after = within - own;
  } else if (!expected && best.remote() && best.format == plan->format) {
    plan->move = {*best.predicted_ttft, best.target};
    plan->hedge_after = within;
  }
}

// Seconds by which a tried plan's first token is expected after the best one's. None for a plan without a prediction: it is
// tried to have one.
double TryCost(double best, const std::optional<double>& tried) {
  return tried ? std::max(0.0, std::min(*tried, kTryWithin * best) - best) : 0;
}

// Of a format the server's own store before targets, where it lacks little. Without targets the first of what is stored
// that has enough. Nothing where there is neither.
std::optional<Plan> FirstOf(const PlannerOptions& options, absl::Span<const std::string> formats,
                            const std::vector<Plan>& stored, const std::vector<Plan>& remote,
                            int64_t handed_over, bool forced) {
  const auto rank = [&](const Plan& plan) {
    return std::find(formats.begin(), formats.end(), plan.format) - formats.begin();
  };
  for (const Plan& plan : stored) {
    const int64_t tokens = plan.handed_over_tokens;
    const bool lacks_little = handed_over - tokens < std::max<int64_t>(options.min_remote_tokens, 1);
    const bool enough = remote.empty() ? forced || lacks_little || tokens >= options.min_remote_tokens
                                       : lacks_little && rank(plan) <= rank(remote.front());
    if (enough) return plan;
  }
  return remote.empty() ? std::nullopt : std::optional<Plan>(remote.front());
}

// There is neither a target to ask nor enough in the server's own store.
PlanReason WhyLocal(absl::Span<const PlanTarget> targets, bool limited) {
  if (limited) return PlanReason::kSiteLimit;
  const bool any_ready =
      std::any_of(targets.begin(), targets.end(), [](const PlanTarget& t) { return t.ready; });
  return any_ready ? PlanReason::kNoFormat : PlanReason::kNoTarget;
}

bool MayTry(const Prediction& prediction, double within) {
  const bool longer = !prediction.ttft && prediction.waited && within >= kLongerTry * *prediction.waited;
  return prediction.stale || longer;
}

Plan Fastest(std::vector<Plan> candidates, bool hedged, double try_seconds, const Predict& predict) {
  const Prediction local = predict(std::nullopt, "");
  if (!local.ttft) return Local(PlanReason::kExplore);
  std::vector<Prediction> predictions;
  for (Plan& plan : candidates) {
    const Prediction& prediction = predictions.emplace_back(predict(plan.target, plan.format));
    plan.predicted_ttft = prediction.ttft;
    plan.price = prediction.price;
    plan.reason = PlanReason::kFastest;
  }
  Plan best = Soonest(candidates, *local.ttft, local.price);
  const double within = kTryWithin * *best.predicted_ttft;
  for (size_t i = 0; i < candidates.size(); ++i) {
    Plan plan = candidates[i];
    if (!MayTry(predictions[i], within)) continue;
    if (plan.target == best.target && plan.format == best.format) continue;
    plan.try_seconds = TryCost(*best.predicted_ttft, plan.predicted_ttft);
    if (plan.predicted_ttft && plan.try_seconds > try_seconds) continue;
    const bool expected = plan.predicted_ttft && *plan.predicted_ttft < within;
    if (hedged) Bound(best, *local.ttft, expected, &plan);
    // One that is expected later is tried too: it may have been overtaken in a bad moment that is over.
    const bool unlimited = !hedged && !plan.predicted_ttft;
    if (!expected && !plan.hedge_after && !unlimited) continue;
    plan.reason = PlanReason::kExplore;
    return plan;
  }
  const double local_cost = TryCost(*best.predicted_ttft, local.ttft);
  if (!best.framed() || !local.stale || *local.ttft >= within || local_cost > try_seconds) return best;
  best = Local(PlanReason::kExplore);
  best.predicted_ttft = local.ttft;
  best.try_seconds = local_cost;
  return best;
}

}  // namespace

double LinkPrice(double link_used, double local_seconds) {
  return kLinkPrice * std::clamp(link_used, 0.0, 1.0) * std::max(0.0, local_seconds);
}

double CrowdPrice(double arrivals, double wait, double seconds) {
  return seconds * std::min(1.0, arrivals * (wait + seconds / 2));
}

size_t ChooseSet(absl::Span<const std::vector<FormatOffer>> sets, absl::Span<const PlanTarget> targets) {
  // Versions may share some encoders: a server that has all of a version's formats counts for more than one that has a few.
  const auto served_share = [](const PlanTarget& target, const std::vector<FormatOffer>& set) {
    double coded = 0, served = 0;
    for (const FormatOffer& format : set) {
      if (format.encoder_hash.empty()) continue;
      ++coded;
      served += Contains(target.offers, format) ? 1 : 0;
    }
    return target.ready && coded > 0 ? served / coded : 0;
  };
  std::vector<double> votes(sets.size());
  for (const PlanTarget& target : targets) {
    size_t of = 0;
    double most = 0;
    for (size_t i = 0; i < sets.size(); ++i) {
      const double share = served_share(target, sets[i]);
      if (share <= most) continue;
      most = share;
      of = i;
    }
    if (most > 0) votes[of] += most;
  }
  return std::max_element(votes.begin(), votes.end()) - votes.begin();
}

void NarrowTo(absl::Span<const FormatOffer> set, std::vector<PlanTarget>* targets) {
  for (PlanTarget& target : *targets) {
    target.formats.clear();
    for (const FormatOffer& format : set) {
      if (Contains(target.offers, format)) target.formats.push_back(format.name);
    }
  }
}

absl::StatusOr<Plan> MakePlan(const PlannerOptions& options, absl::Span<const std::string> formats,
                              absl::Span<const PlanTarget> targets, const PlanRequest& request,
                              const Predict& predict, const StoredHere& stored_here) {
  const bool forced = !request.format.empty();
  if (forced && !Contains(formats, request.format)) {
    return absl::InvalidArgumentError(absl::StrCat("format: found \"", Quotable(request.format),
                                                   "\", want one of ", absl::StrJoin(formats, ", ")));
  }
  const Fidelity fidelity = request.fidelity.value_or(forced ? Fidelity::kFast : options.fidelity);
  if (fidelity == Fidelity::kExact) {
    if (!forced) return Local(PlanReason::kFidelity);
    return absl::InvalidArgumentError(
        absl::StrCat("format: found \"", Quotable(request.format), "\" with fidelity exact, want no format"));
  }
  const int64_t handed_over = request.prompt_tokens - options.recomputed_tail_tokens;
  if (handed_over < 1 || (!forced && request.prompt_tokens < options.min_remote_tokens)) {
    return Local(PlanReason::kShortPrompt);
  }
  bool limited = false;
  std::vector<Plan> candidates =
      Candidates(options, formats, targets, request, fidelity, handed_over, &limited);
  const std::vector<Plan> stored =
      StoredCandidates(options, formats, request, fidelity, handed_over, stored_here);
  if (candidates.empty() && stored.empty()) return Local(WhyLocal(targets, limited));
  if (options.by_prediction && !forced && predict) {
    candidates.insert(candidates.begin(), stored.begin(), stored.end());
    return Fastest(std::move(candidates), options.hedged, request.try_seconds, predict);
  }
  std::optional<Plan> plan = FirstOf(options, formats, stored, candidates, handed_over, forced);
  if (!plan) return Local(WhyLocal(targets, limited));
  if (predict) plan->predicted_ttft = predict(plan->target, plan->format).ttft;
  return *std::move(plan);
}

std::vector<std::string> RankedAfter(size_t first, absl::Span<const PlanTarget> targets,
                                     const std::vector<std::string>& preferred) {
  std::vector<std::string> names = {targets[first].name};
  for (const size_t i : Order(targets, preferred)) {
    if (i != first) names.push_back(targets[i].name);
  }
  return names;
}

}  // namespace aludel
