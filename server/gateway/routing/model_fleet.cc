#include "server/gateway/routing/model_fleet.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// How much of what was learned a new request leaves.
constexpr double kMemory = 0.9;

// Of a server's pace, to the mean of all.
constexpr double kAlike = 1.5;
// A server is asked five times a second: the state of one that has not answered for so long is old.
constexpr double kStaleSeconds = 1;
// For so long a server that was asked nothing since is believed to be slow. Its machine may have had other work then, and without
// an end it would never be asked again.
constexpr double kBelievedSeconds = 30;
// Fewer tokens take as long as a step does: they say little of the cost of one.
constexpr double kTellingTokens = 256;

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

const std::vector<double>& DecisionBuckets() {
  static const auto* const buckets =
      new std::vector<double>{1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2};
  return *buckets;
}

// What a peer says may be anything.
int ToInt(uint64_t count) { return static_cast<int>(std::min<uint64_t>(count, 1 << 20)); }

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

// Keys that are put in or taken out while the fleet is locked once, some tenths of a microsecond each; and how long the lock
// is left to those that wait for it, which else may not have it before the last step.
constexpr size_t kStepKeys = 256;
constexpr absl::Duration kBetweenSteps = absl::Microseconds(50);

// Until a step gives false.
template <typename Key>
bool InSteps(absl::Span<const Key> keys, absl::FunctionRef<bool(absl::Span<const Key> some)> step) {
  for (size_t at = 0; at < keys.size(); at += kStepKeys) {
    if (at > 0) absl::SleepFor(kBetweenSteps);
    if (!step(keys.subspan(at, kStepKeys))) return false;
  }
  return true;
}

}  // namespace

ModelFleet::ModelFleet(std::string model, const Fleet::Options& options, Metrics* metrics)
    : model_(std::move(model)),
      policy_(options.policy),
      objective_seconds_(options.objective_seconds),
      cache_events_(options.cache_events),
      decisions_(metrics->Counter("aludel_routing_decisions_total",
                                  "Decode servers chosen for requests, by reason.")),
      hit_tokens_(
          metrics->Counter("aludel_routing_hit_tokens_total",
                           "Prompt tokens that were in the chosen decode server's prefix cache, as the "
                           "gateway believed and as the server said.")),
      ejections_(metrics->Counter("aludel_routing_ejections_total",
                                  "Decode servers left out for a while because requests failed there.")),
      turned_away_(
          metrics->Counter("aludel_routing_turned_away_total",
                           "Requests that a decode server sent back because its queue was longer than "
                           "the gateway believed.")),
      stale_(metrics->Counter("aludel_routing_stale_decisions_total",
                              "Decode servers chosen whose last load report was more than a second old.")),
      late_(metrics->Counter("aludel_wait_refusals_total",
                             "Requests refused for what waits already, by reason.")),
      snapshots_(metrics->Counter("aludel_routing_cache_snapshots_total",
                                  "Times that a decode server told all that its prefix cache holds.")),
      known_caches_(metrics->Gauge("aludel_routing_known_caches",
                                   "Decode servers that tell what their prefix caches hold.")),
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
  late_.Add({{"model", model_}, {"reason", "ttft"}}, 0);
  for (const CounterFamily& counter : {ejections_, turned_away_, stale_, snapshots_}) {
    counter.Add({{"model", model_}}, 0);
  }
  known_caches_.Set({{"model", model_}}, 0);
}

size_t ModelFleet::Add(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const size_t slot = fleet_.Add(name);
  paces_.resize(std::max(paces_.size(), slot + 1));
  paces_[slot] = Pace();
  reporting_.resize(paces_.size());
  reporting_[slot] = false;
  return slot;
}

void ModelFleet::Remove(size_t slot) {
  absl::MutexLock lock(&mutex_);
  if (fleet_.knows_cache(slot)) CountKnown(-1);
  fleet_.Remove(slot);
  paces_[slot] = Pace();
  reporting_[slot] = false;
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

std::optional<ModelFleet::Picked> ModelFleet::Pick(const PrefixKeys& keys, StandingOf standing, bool again,
                                                   int places, std::optional<double> max_ttft,
                                                   double time_left) {
  const absl::Time begin = MonotonicNow();
  RoutingDecision decision;
  Picked picked;
  bool stale = false;
  {
    absl::MutexLock lock(&mutex_);
    decision = fleet_.Choose(keys, standing, Seconds(begin), again);
    // A guess of what is new here shall not keep it from being measured.
    if (decision.replica && by_prefix() && max_ttft && paces_[*decision.replica].tokens > 0) {
      picked.late = fleet_.LateBy(*max_ttft, keys.tokens, time_left);
    }
    if (decision.replica && !picked.late) {
      const absl::Span<const ReplicaView> views = fleet_.views();
      const double now = Seconds(begin);
      const auto others = std::count_if(views.begin(), views.end(), [](const ReplicaView& view) {
        return view.standing == ReplicaView::Standing::kReady;
      });
      picked = {.slot = *decision.replica, .cached_tokens = fleet_.CachedTokens(*decision.replica, keys)};
      if (by_prefix() && others > 1) picked.wait_limit = fleet_.WaitLimit(picked.slot, now);
      const double age = fleet_.report_age(picked.slot, now);
      stale = reporting_[picked.slot] && age > kStaleSeconds;
      paces_[picked.slot].asked = now;
      fleet_.Sent(picked.slot, keys, fleet_.ExpectedPrefill(picked.slot, keys.tokens), now, places);
    }
  }
  if (picked.late) return picked;
  decision_seconds_.Observe({{"model", model_}}, absl::ToDoubleSeconds(MonotonicNow() - begin));
  decisions_.Add({{"model", model_}, {"reason", Name(decision.reason)}});
  if (!decision.replica) return std::nullopt;
  if (stale) stale_.Add({{"model", model_}});
  return picked;
}

void ModelFleet::TurnedAway(size_t slot, const PrefixKeys& keys, int64_t cached_tokens) {
  turned_away_.Add({{"model", model_}});
  NotTaken(slot, keys, cached_tokens);
}

void ModelFleet::NotTaken(size_t slot, const PrefixKeys& keys, int64_t cached_tokens) {
  absl::MutexLock lock(&mutex_);
  fleet_.TurnedAway(slot, keys, cached_tokens);
}

void ModelFleet::Reported(size_t slot, const v1::LoadReport& report, absl::Time as_of) {
  absl::MutexLock lock(&mutex_);
  reporting_[slot] = true;
  Pace& pace = paces_[slot];
  const double now = Seconds(as_of);
  if (report.prefill_seconds_per_token() > 0 && pace.tokens == 0) {
    // Until answers tell; theirs have the handoff in them.
    Learn(slot, kTellingTokens * report.prefill_seconds_per_token(), kTellingTokens, now);
  } else if (pace.believed() && now - pace.asked > kBelievedSeconds &&
             pace.per_token() >= kAlike * Common()) {
    pace.doubted = true;
    SetCosts();
  }
  ReplicaReport said{.waiting_seconds = report.waiting_seconds(),
                     .running = ToInt(uint64_t{report.running()} + report.waiting()),
                     .places = ToInt(report.places()),
                     .age_seconds = report.age_seconds(),
                     .costs = fleet_.costs(slot)};
  if (report.has_cache_tokens()) said.cache_tokens = static_cast<int64_t>(report.cache_tokens());
  fleet_.Report(slot, said, Seconds(as_of));
  for (const v1::PromptPrefixes& prompt : report.prefixes()) {
    fleet_.Learn(slot, WithEnds(prompt.keys(), static_cast<int64_t>(prompt.tokens())));
  }
}

void ModelFleet::Started(size_t slot, absl::Time sent, const v1::Started& started, const Asked& asked) {
  hit_tokens_.Add({{"model", model_}, {"kind", "predicted"}}, static_cast<double>(asked.cached_tokens));
  hit_tokens_.Add({{"model", model_}, {"kind", "actual"}}, started.cached_tokens());
  const double queued = started.stages().queue();
  const double computed = started.stages().ttft() - queued;
  const auto tokens =
      static_cast<double>(asked.prompt_tokens - static_cast<int64_t>(started.cached_tokens()));
  if (!(queued >= 0) || !(computed > 0) || tokens < 1) return;
  absl::MutexLock lock(&mutex_);
  if (tokens >= kTellingTokens || paces_[slot].tokens < kTellingTokens) {
    Learn(slot, computed, tokens, Seconds(MonotonicNow()));
  }
  // What it had to do when the request came, with it; what was sent there since counts on top.
  fleet_.Measured(slot, queued + computed, Seconds(sent));
}

void ModelFleet::Learn(size_t slot, double computed, double tokens, double now) {
  Pace& pace = paces_[slot];
  if (pace.doubted) pace = {};
  pace.seconds = kMemory * pace.seconds + computed;
  pace.tokens = kMemory * pace.tokens + tokens;
  pace.asked = now;
  SetCosts();
}

double ModelFleet::Common() const {
  double seconds = 0, tokens = 0;
  for (const Pace& pace : paces_) {
    if (!pace.believed()) continue;
    seconds += pace.seconds;
    tokens += pace.tokens;
  }
  return seconds / tokens;
}

void ModelFleet::SetCosts() {
  // Servers that are about alike count as alike, and those of which nothing is believed as the others: else what happened to
  // be measured, and not the prefix, would choose between them.
  const double common = Common();
  for (size_t i = 0; i < paces_.size(); ++i) {
    const double own = paces_[i].believed() ? paces_[i].per_token() : common;
    const bool alike = own < kAlike * common && own > common / kAlike;
    fleet_.SetCosts(i, {.per_token = alike ? common : own});
  }
}

void ModelFleet::ForgetCache(size_t slot) {
  absl::MutexLock lock(&mutex_);
  fleet_.ForgetCache(slot);
}

void ModelFleet::CountKnown(int more) {
  known_ += more;
  known_caches_.Set({{"model", model_}}, known_);
}

void ModelFleet::Unlink(size_t slot, const KnownCache& cache) {
  InSteps<uint64_t>(cache.Ends(), [&](absl::Span<const uint64_t> ends) {
    absl::MutexLock lock(&mutex_);
    fleet_.known_caches().Unlink(slot, ends);
    return true;
  });
}

std::optional<size_t> ModelFleet::CacheKnown(size_t slot, absl::Span<const KeyChange> keys,
                                             int64_t key_tokens) {
  snapshots_.Add({{"model", model_}});
  CacheUnknown(slot);
  {
    absl::MutexLock lock(&mutex_);
    if (!fleet_.known_caches().has_room(keys.size())) return std::nullopt;
  }
  auto cache = std::make_unique<KnownCache>(keys, key_tokens);
  InSteps<uint64_t>(cache->Ends(), [&](absl::Span<const uint64_t> ends) {
    absl::MutexLock lock(&mutex_);
    fleet_.known_caches().Link(slot, ends);
    return true;
  });
  {
    absl::MutexLock lock(&mutex_);
    fleet_.known_caches().Put(slot, &cache);
    if (cache == nullptr) {
      CountKnown(1);
      return fleet_.known_caches().keys(slot);
    }
  }
  Unlink(slot, *cache);
  return std::nullopt;
}

std::optional<size_t> ModelFleet::CacheChanged(size_t slot, absl::Span<const KeyChange> changes) {
  std::optional<size_t> keys;
  const bool known = InSteps<KeyChange>(changes, [&](absl::Span<const KeyChange> some) {
    absl::MutexLock lock(&mutex_);
    if (!fleet_.known_caches().Apply(slot, some)) return false;
    keys = fleet_.known_caches().keys(slot);
    return true;
  });
  if (known) return keys;
  CacheUnknown(slot);
  return std::nullopt;
}

void ModelFleet::CacheUnknown(size_t slot) {
  std::unique_ptr<KnownCache> cache;
  {
    absl::MutexLock lock(&mutex_);
    cache = fleet_.known_caches().Take(slot);
    if (cache == nullptr) return;
    CountKnown(-1);
  }
  Unlink(slot, *cache);
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
  const double now = Seconds(MonotonicNow());
  Explanation explanation{.decision = fleet_.Choose(keys, standing, now, /*again=*/true)};
  explanation.views.assign(fleet_.views().begin(), fleet_.views().end());
  for (size_t slot = 0; slot < explanation.views.size(); ++slot) {
    explanation.exact.push_back(keys.has_blocks && fleet_.knows_cache(slot));
    explanation.report_age.push_back(reporting_[slot] ? std::optional(fleet_.report_age(slot, now))
                                                      : std::nullopt);
    explanation.views[slot].cached_tokens = fleet_.CachedTokens(slot, keys);
  }
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

double ModelFleet::Desired(StandingOf standing, int waiting) {
  const double now = Seconds(MonotonicNow());
  absl::MutexLock lock(&mutex_);
  DesiredReplicas::Load load{.pending = static_cast<double>(waiting)};
  bool places_known = true;
  for (size_t slot = 0; slot < paces_.size(); ++slot) {
    if (standing(slot) == Standing::kOut) continue;
    ++load.replicas;
    load.pending += fleet_.pending(slot);
    load.places += fleet_.places(slot);
    places_known = places_known && fleet_.places(slot) > 0;
    load.wait_seconds += fleet_.wait_seconds(slot, now);
  }
  if (!places_known) load.places = 0;
  if (load.replicas > 0) load.wait_seconds /= load.replicas;
  return desired_.At(load, objective_seconds_, now);
}

}  // namespace aludel
