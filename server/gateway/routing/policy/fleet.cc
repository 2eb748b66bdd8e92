#include "server/gateway/routing/policy/fleet.h"

#include <algorithm>
#include <cmath>

namespace aludel {
namespace {

// Tokens of all replicas' caches that the index holds, some bytes each.
constexpr int64_t kIndexTokens = 64'000'000;
// Times the mean of unfinished requests, and some more: a server with more is crowded.
constexpr double kCrowded = 1.5;
constexpr double kFew = 4;
// Between the end of a prompt's prefill and its replica's word of it, at most.
constexpr double kTellSeconds = 1;

}  // namespace

size_t Fleet::Add(const std::string& name) {
  const auto free =
      std::find_if(replicas_.begin(), replicas_.end(), [](const Replica& it) { return !it.used; });
  const auto slot = static_cast<size_t>(free - replicas_.begin());
  if (free == replicas_.end()) replicas_.emplace_back();
  replicas_[slot] = {.used = true, .id = RendezvousId(name)};
  index_.Reset(slot, 0);
  BoundIndex(slot);
  return slot;
}

void Fleet::BoundIndex(size_t slot) {
  const std::optional<int64_t> said = replicas_[slot].report.cache_tokens;
  index_.SetCapacity(slot, std::min(said.value_or(options_.cache_tokens),
                                    kIndexTokens / static_cast<int64_t>(replicas_.size())));
}

void Fleet::Remove(size_t slot) {
  index_.Reset(slot, 0);
  known_.Forget(slot);
  replicas_[slot] = Replica();
}

void Fleet::Forget(size_t slot, double now) {
  index_.Reset(slot, 0);
  Replica& replica = replicas_[slot];
  // What was sent still ends.
  replica = {.used = true,
             .id = replica.id,
             .report = {.places = replica.report.places},
             .reported_at = now,
             .sent = replica.sent};
  BoundIndex(slot);
}

void Fleet::Report(size_t slot, const ReplicaReport& report, double as_of) {
  Replica& replica = replicas_[slot];
  if (as_of < replica.reported_at) return;  // overtaken
  replica.report = report;
  replica.reported_at = as_of;
  replica.others = std::max(0, report.running - replica.sent);
  replica.load.Report(report.waiting_seconds, as_of);
  replica.under_way.Shorten(as_of + kTellSeconds + 2 * replica.load.At(as_of));
  BoundIndex(slot);
}

void Fleet::Learn(size_t slot, const PrefixKeys& keys) { index_.Insert(slot, keys, keys.size()); }

double Fleet::WeightOf(const Replica& replica, double now) const {
  if (replica.reported_at < 0) return 1;
  const double age = replica.report.age_seconds + std::max(0.0, now - replica.reported_at);
  return SlowStartWeight(age, options_.slow_start_seconds);
}

void Fleet::MakeViews(const PrefixKeys& keys, absl::FunctionRef<Standing(size_t slot)> standing, double now) {
  index_.Match(keys, &cached_);
  if (keys.has_blocks) {
    sent_ = cached_;
    known_.Match(keys, &cached_);
    for (size_t slot = 0; slot < replicas_.size(); ++slot) {
      // What is under way was sent.
      if (sent_[slot] <= cached_[slot] || !known_.knows(slot)) continue;
      const int64_t follows = replicas_[slot].under_way.Match(keys, now);
      cached_[slot] = std::max(cached_[slot], known_.AtMost(slot, follows, keys));
    }
  }
  views_.resize(replicas_.size());
  size_t ready = 0, ejected = 0;
  double most = 0;  // weight
  for (size_t slot = 0; slot < replicas_.size(); ++slot) {
    const Replica& replica = replicas_[slot];
    ReplicaView& view = views_[slot];
    view.standing = replica.used ? standing(slot) : Standing::kOut;
    if (view.standing == Standing::kOut) {
      view = {.standing = Standing::kOut};
      continue;
    }
    view.id = replica.id;
    view.weight = WeightOf(replica, now);
    view.wait_seconds = replica.load.At(now);
    view.cached_tokens = cached_[slot];
    view.pending = replica.pending();
    view.costs = replica.report.costs;
    view.keeps_prefixes = replica.report.cache_tokens.value_or(1) > 0;
    if (view.standing != Standing::kReady) continue;
    ++ready;
    most = std::max(most, view.weight);
    if (replica.outlier.ejected(now)) ++ejected;
    if (replica.report.places > 0 && view.pending >= replica.report.places) view.standing = Standing::kSpare;
  }
  if (options_.policy == RoutingPolicy::kPrefix) SpareCrowded(now);
  // Where all are new, none is.
  const bool scale = most > 0 && most < 1;
  const bool eject = Outlier::MayEject(ejected, ready);
  if (!scale && !eject) return;
  for (size_t slot = 0; slot < replicas_.size(); ++slot) {
    if (scale) views_[slot].weight /= most;
    if (eject && views_[slot].standing == Standing::kReady && replicas_[slot].outlier.ejected(now)) {
      views_[slot].standing = Standing::kSpare;
    }
  }
}

void Fleet::SpareCrowded(double now) {
  const auto shares = [&](size_t slot) {
    return views_[slot].standing == Standing::kReady && !replicas_[slot].outlier.ejected(now);
  };
  int64_t pending = 0;
  int64_t sharing = 0;
  for (size_t slot = 0; slot < views_.size(); ++slot) {
    if (!shares(slot)) continue;
    pending += views_[slot].pending;
    ++sharing;
  }
  const double fair =
      kCrowded * static_cast<double>(pending) / static_cast<double>(std::max<int64_t>(sharing, 1));
  for (size_t slot = 0; slot < views_.size(); ++slot) {
    if (static_cast<double>(views_[slot].pending) > fair + kFew && shares(slot)) {
      views_[slot].standing = Standing::kSpare;
    }
  }
}

RoutingDecision Fleet::Choose(const PrefixKeys& keys, absl::FunctionRef<Standing(size_t slot)> standing,
                              double now, bool again) {
  MakeViews(keys, standing, now);
  const auto alive = std::count_if(views_.begin(), views_.end(),
                                   [](const ReplicaView& view) { return view.standing != Standing::kOut; });
  // Requests that do not live where their beginnings do say nothing of how hot these are.
  const bool counted = !again && !keys.home;
  depth_ = counted ? key_depth_.Count(keys, static_cast<int>(alive)) : key_depth_.Of(keys);
  return ChooseReplica({.policy = options_.policy,
                        .key = keys.home          ? *keys.home
                               : keys.size() == 0 ? 0
                                                  : keys.keys[depth_],
                        .key_says = keys.home.has_value(),
                        .prompt_tokens = keys.tokens,
                        .objective_seconds = options_.objective_seconds,
                        .turn = again ? turn_ : turn_++},
                       views_);
}

double Fleet::ExpectedPrefill(size_t slot, int64_t prompt_tokens) const {
  const ReplicaView& view = views_[slot];
  return view.costs.Seconds(prompt_tokens, std::min(view.cached_tokens, prompt_tokens));
}

std::optional<double> Fleet::LateBy(double max_ttft, int64_t prompt_tokens, double time_left) const {
  double least = std::numeric_limits<double>::infinity();
  const Standing standing = ChosenFrom(views_);
  for (const ReplicaView& view : views_) {
    if (view.standing != standing || standing == Standing::kOut) continue;
    const double ttft = PredictTtft(view, prompt_tokens), wait = view.wait_seconds / view.weight;
    const double late = ttft - wait > max_ttft ? wait - max_ttft / 2 : ttft - max_ttft;
    // A prompt that takes longer than its deadline by itself would take so later on, too.
    const bool hopeless = std::isinf(max_ttft) && ttft - wait > time_left;
    least = std::min(least, hopeless ? late : std::max(late, ttft - time_left));
  }
  if (!(least > 0) || least == std::numeric_limits<double>::infinity()) return std::nullopt;
  return least;
}

void Fleet::Sent(size_t slot, const PrefixKeys& keys, double prefill_seconds, double now, int places) {
  Replica& replica = replicas_[slot];
  replica.sent += places;
  replica.load.Add(prefill_seconds, now);
  index_.Insert(slot, keys, keys.size());
  // Twice as long as its queue is believed to be: then it has told what became of it.
  if (known_.knows(slot)) replica.under_way.Add(keys, now + kTellSeconds + 2 * replica.load.At(now), now);
}

int64_t Fleet::CachedTokens(size_t slot, const PrefixKeys& keys) const {
  const int64_t matched = views_[slot].cached_tokens;
  if (!keys.has_blocks || !known_.knows(slot)) return matched;
  return std::max(matched, known_.Cached(slot, keys));
}

void Fleet::ForgetCache(size_t slot) {
  replicas_[slot].under_way.Clear();
  index_.Reset(slot, 0);
  BoundIndex(slot);
}

bool Fleet::Ended(size_t slot, Outcome outcome, double now, int places) {
  Replica& replica = replicas_[slot];
  replica.sent = std::max(0, replica.sent - places);
  if (outcome == Outcome::kFailed) return replica.outlier.Failed(now);
  if (outcome == Outcome::kServed) replica.outlier.Succeeded();
  return false;
}

}  // namespace aludel
