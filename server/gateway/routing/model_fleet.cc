#include "server/gateway/routing/model_fleet.h"

#include <algorithm>
#include <utility>

#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// How much of what was learned a new request leaves.
constexpr double kMemory = 0.9;

// Of a server's pace, to the mean of all.
constexpr double kAlike = 1.5;
// Fewer tokens take as long as a step does: they say little of the cost of one.
constexpr double kTellingTokens = 256;

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

const std::vector<double>& DecisionBuckets() {
  static const auto* const buckets =
      new std::vector<double>{1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2};
  return *buckets;
}

// Whether the server, and not the request or the client, is why it failed. One that cannot be reached is down anyway.
Fleet::Outcome OutcomeOf(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return Fleet::Outcome::kServed;
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::DATA_LOSS:
      return Fleet::Outcome::kFailed;
    default:
      return Fleet::Outcome::kRefused;
  }
}

}  // namespace

ModelFleet::ModelFleet(std::string model, const Fleet::Options& options, Metrics* metrics)
    : model_(std::move(model)),
      policy_(options.policy),
      decisions_(metrics->Counter("aludel_routing_decisions_total",
                                  "Decode servers chosen for requests, by reason.")),
      hit_tokens_(
          metrics->Counter("aludel_routing_hit_tokens_total",
                           "Prompt tokens that were in the chosen decode server's prefix cache, as the "
                           "gateway believed and as the server said.")),
      ejections_(metrics->Counter("aludel_routing_ejections_total",
                                  "Decode servers left out for a while because requests failed there.")),
      decision_seconds_(metrics->Histogram("aludel_routing_decision_seconds",
                                           "How long the choice of a decode server took.",
                                           DecisionBuckets())),
      fleet_(options) {
  const std::vector<RoutingReason> reasons =
      policy_ == RoutingPolicy::kPrefix
          ? std::vector{RoutingReason::kFirst, RoutingReason::kSecond, RoutingReason::kCached,
                        RoutingReason::kSpill, RoutingReason::kNone}
          : std::vector{RoutingReason::kNone};
  for (const RoutingReason reason : reasons) decisions_.Add({{"model", model_}, {"reason", Name(reason)}}, 0);
  for (const char* kind : {"predicted", "actual"}) hit_tokens_.Add({{"model", model_}, {"kind", kind}}, 0);
  ejections_.Add({{"model", model_}}, 0);
}

size_t ModelFleet::Add(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const size_t slot = fleet_.Add(name);
  paces_.resize(std::max(paces_.size(), slot + 1));
  paces_[slot] = Pace();
  return slot;
}

void ModelFleet::Restarted(size_t slot) {
  absl::MutexLock lock(&mutex_);
  fleet_.Forget(slot, Seconds(MonotonicNow()));
  paces_[slot] = Pace();
}

void ModelFleet::SetPlaces(size_t slot, int places) {
  absl::MutexLock lock(&mutex_);
  fleet_.SetPlaces(slot, places);
}

std::optional<size_t> ModelFleet::Pick(const PrefixKeys& keys, StandingOf standing, bool again, int places) {
  const absl::Time begin = MonotonicNow();
  RoutingDecision decision;
  int64_t hits = 0;
  {
    absl::MutexLock lock(&mutex_);
    decision = fleet_.Choose(keys, standing, Seconds(begin), again);
    if (decision.replica) {
      hits = fleet_.views()[*decision.replica].cached_tokens;
      fleet_.Sent(*decision.replica, keys, fleet_.ExpectedPrefill(*decision.replica, keys.tokens),
                  Seconds(begin), places);
    }
  }
  decision_seconds_.Observe({{"model", model_}}, absl::ToDoubleSeconds(MonotonicNow() - begin));
  decisions_.Add({{"model", model_}, {"reason", Name(decision.reason)}});
  if (decision.replica)
    hit_tokens_.Add({{"model", model_}, {"kind", "predicted"}}, static_cast<double>(hits));
  return decision.replica;
}

void ModelFleet::Started(size_t slot, absl::Time sent, const v1::Started& started, int64_t prompt_tokens) {
  hit_tokens_.Add({{"model", model_}, {"kind", "actual"}}, started.cached_tokens());
  const double queued = started.stages().queue();
  const double computed = started.stages().ttft() - queued;
  const auto tokens = static_cast<double>(prompt_tokens - static_cast<int64_t>(started.cached_tokens()));
  if (!(queued >= 0) || !(computed > 0) || tokens < 1) return;
  absl::MutexLock lock(&mutex_);
  if (tokens >= kTellingTokens || paces_[slot].tokens < kTellingTokens) Learn(slot, computed, tokens);
  // What it had to do when the request came, with it; what was sent there since counts on top.
  fleet_.Measured(slot, queued + computed, Seconds(sent));
}

void ModelFleet::Learn(size_t slot, double computed, double tokens) {
  Pace& pace = paces_[slot];
  pace.seconds = kMemory * pace.seconds + computed;
  pace.tokens = kMemory * pace.tokens + tokens;
  Pace all;
  for (const Pace& one : paces_) {
    all.seconds += one.seconds;
    all.tokens += one.tokens;
  }
  // Servers that are about alike count as alike, and those of which nothing was heard as the others: else what happened to
  // be measured, and not the prefix, would choose between them.
  const double common = all.seconds / all.tokens;
  for (size_t i = 0; i < paces_.size(); ++i) {
    const double own = paces_[i].tokens > 0 ? paces_[i].seconds / paces_[i].tokens : common;
    const bool alike = own < kAlike * common && own > common / kAlike;
    fleet_.SetCosts(i, {.per_token = alike ? common : own});
  }
}

void ModelFleet::ForgetCache(size_t slot) {
  absl::MutexLock lock(&mutex_);
  fleet_.ForgetCache(slot);
}

void ModelFleet::Ended(size_t slot, const grpc::Status& status, int places) {
  bool ejected;
  {
    absl::MutexLock lock(&mutex_);
    ejected = fleet_.Ended(slot, OutcomeOf(status), Seconds(MonotonicNow()), places);
  }
  if (ejected) ejections_.Add({{"model", model_}});
}

ModelFleet::Explanation ModelFleet::Explain(const PrefixKeys& keys, StandingOf standing) {
  absl::MutexLock lock(&mutex_);
  Explanation explanation{.decision = fleet_.Choose(keys, standing, Seconds(MonotonicNow()), /*again=*/true)};
  explanation.views.assign(fleet_.views().begin(), fleet_.views().end());
  if (keys.size() > 0) explanation.key_tokens = keys.ends[fleet_.depth()];
  return explanation;
}

double ModelFleet::Imbalance(StandingOf standing) const {
  const double now = Seconds(MonotonicNow());
  absl::MutexLock lock(&mutex_);
  double most = 0, sum = 0;
  int count = 0;
  for (size_t slot = 0; slot < paces_.size(); ++slot) {
    if (standing(slot) != Standing::kReady) continue;
    const double wait = fleet_.wait_seconds(slot, now);
    most = std::max(most, wait);
    sum += wait;
    ++count;
  }
  return sum > 0 ? most * count / sum : 1;
}

}  // namespace aludel
