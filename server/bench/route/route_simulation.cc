#include "server/bench/route/route_simulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/bench/route/moves.h"
#include "server/bench/route/other_policies.h"

namespace aludel {
namespace {

constexpr double kMinute = 60;

class Simulation {
 public:
  Simulation(const std::vector<SimRequest>& requests, const SimOptions& options)
      : requests_(requests),
        options_(options),
        random_(options.seed),
        prefill_(options.prefill, options.costs) {
    RoutingPolicy policy = ParseRoutingPolicy(options.policy).value_or(RoutingPolicy::kPrefix);
    for (int i = 0; i < options.gateways; ++i) {
      gateways_.emplace_back(Fleet::Options{.policy = policy,
                                            .objective_seconds = options.objective_seconds,
                                            .cache_tokens = options.costs.cache_tokens});
    }
    for (int i = 0; i < options.replicas; ++i) AddReplica(/*began=*/-1e6);
    result_.ttft.assign(requests.size(), std::numeric_limits<double>::infinity());
    result_.itl.assign(requests.size(), 0);
    result_.handed_over.assign(requests.size(), false);
    calls_.resize(requests.size());
  }

  SimResult Run() {
    for (size_t i = 0; i < requests_.size(); ++i) Push(requests_[i].arrival, Kind::kArrive, i);
    for (size_t i = 0; i < options_.changes.size(); ++i) Push(options_.changes[i].at, Kind::kChange, i);
    Push(0, Kind::kProbe, 0);
    Push(kMinute, Kind::kMinute, 0);
    while (ended_ < requests_.size()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      Handle(event);
    }
    if (minutes_ > 0) result_.imbalance /= minutes_;
    if (now_ > 0) result_.link_bytes_per_second = prefill_.sent_bytes() / now_;
    return std::move(result_);
  }

 private:
  enum class Kind { kArrive, kFrames, kStep, kProbe, kDeliver, kChange, kReturn, kMinute };
  struct Event {
    double at;
    uint64_t order;  // of equal times
    Kind kind;
    size_t index;
    bool operator>(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct Replica {
    std::unique_ptr<SimReplica> server;
    double began = 0;
    bool up = true;
    bool draining = false;
    int handed_over = 0;          // prompts that prefill servers compute for it
    std::vector<size_t> arrived;  // since the last probe
    double prefill_seconds = 0;   // at the last minute's end
  };
  struct Snapshot {
    double at;
    std::vector<ReplicaReport> reports;
    std::vector<std::vector<size_t>> arrived;
    std::vector<double> began;  // of each server's process
  };
  struct Call {
    size_t gateway = 0;
    size_t replica = 0;
    bool again = false;
    double sent_to = 0;  // the process that began then
    int64_t prefill_cached = 0;
    double first_token = 0;
    int64_t cached = 0;  // tokens that its server was believed to have
    int moves = 0;
  };

  void Push(double at, Kind kind, size_t index) { events_.push({at, order_++, kind, index}); }

  void AddReplica(double began) {
    const std::string name = absl::StrCat("replica-", options_.seed, "-", replicas_.size());
    replicas_.push_back({.server = std::make_unique<SimReplica>(options_.costs), .began = began});
    for (Fleet& fleet : gateways_) {
      const size_t slot = fleet.Add(name);
      fleet.Report(slot, replicas_[slot].server->Report(now_, now_ - began), now_);
    }
    names_.push_back(RendezvousId(name));
  }

  ReplicaView::Standing StandingOf(size_t i) const {
    return replicas_[i].up && !replicas_[i].draining ? ReplicaView::Standing::kReady
                                                     : ReplicaView::Standing::kOut;
  }

  void Handle(const Event& event) {
    switch (event.kind) {
      case Kind::kArrive:
        return Route(event.index);
      case Kind::kFrames:
        return Frames(event.index);
      case Kind::kStep:
        if (replicas_[event.index].server->next() == event.at) StepOf(event.index);
        return;
      case Kind::kProbe:
        return Probe();
      case Kind::kDeliver:
        return Deliver();
      case Kind::kChange:
        return Change(options_.changes[event.index]);
      case Kind::kReturn:
        replicas_[event.index].up = true;
        replicas_[event.index].began = now_;
        return;
      case Kind::kMinute:
        return Minute();
    }
  }

  // What would be known if nothing took time.
  std::vector<ReplicaView> TrueViews(const PrefixKeys& keys) const {
    std::vector<ReplicaView> views;
    for (size_t i = 0; i < replicas_.size(); ++i) {
      const ReplicaReport report = ReportOf(replicas_[i]);
      views.push_back({.id = names_[i],
                       .standing = StandingOf(i),
                       .wait_seconds = report.waiting_seconds,
                       .cached_tokens = replicas_[i].server->Match(keys),
                       .pending = report.running,
                       .costs = report.costs});
    }
    return views;
  }

  // `among`: those servers only, unless there are none.
  std::optional<size_t> Decide(Fleet* fleet, const PrefixKeys& keys, bool again,
                               const std::vector<size_t>& among = {}) {
    const RoutingDecision decision = fleet->Choose(
        keys,
        [&](size_t slot) {
          const bool asked = among.empty() || std::find(among.begin(), among.end(), slot) != among.end();
          return asked ? StandingOf(slot) : ReplicaView::Standing::kOut;
        },
        now_, again);
    ++result_.reasons[ParseRoutingPolicy(options_.policy) ? Name(decision.reason) : options_.policy];
    if (!decision.replica || ParseRoutingPolicy(options_.policy)) return decision.replica;
    const uint64_t key = keys.keys[fleet->depth()];
    if (options_.policy == kLeastTtftExact) {
      const std::vector<ReplicaView> views = TrueViews(keys);
      return ChooseOtherwise(options_.policy, key, keys.tokens, options_.objective_seconds, views);
    }
    return ChooseOtherwise(options_.policy, key, keys.tokens, options_.objective_seconds, fleet->views());
  }

  void Route(size_t request) {
    Call& call = calls_[request];
    const PrefixKeys& keys = requests_[request].keys;
    call.gateway = random_() % gateways_.size();
    Fleet& fleet = gateways_[call.gateway];
    const auto begin = std::chrono::steady_clock::now();
    std::optional<size_t> chosen = Decide(&fleet, keys, call.again);
    std::vector<size_t> refused;
    while (chosen && refused.size() < static_cast<size_t>(options_.turn_aways) &&
           TurnsAway(&fleet, *chosen, keys)) {
      refused.push_back(*chosen);
      const bool last = refused.size() == static_cast<size_t>(options_.turn_aways);
      chosen = Decide(&fleet, keys, /*again=*/true, last ? refused : std::vector<size_t>());
    }
    if (!chosen) return Push(now_ + 1, Kind::kArrive, request);  // none is up
    if (options_.max_ttft_seconds > 0 && !call.again &&
        fleet.LateBy(options_.max_ttft_seconds, keys.tokens)) {
      ++result_.refused;
      ++ended_;
      return;
    }
    call.replica = *chosen;
    call.cached = fleet.views()[*chosen].cached_tokens;
    if (options_.moves > 0) movable_.push_back(request);
    fleet.Sent(call.replica, keys, fleet.ExpectedPrefill(call.replica, keys.tokens), now_);
    result_.decision_micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    Replica& replica = replicas_[call.replica];
    replica.arrived.push_back(request);
    result_.handed_over[request] = prefill_.Takes(keys.tokens - replica.server->Match(keys));
    if (!result_.handed_over[request]) return Compute(request, std::nullopt);
    const SimPrefillPool::Handoff handoff = prefill_.Send(keys, now_);
    ++replica.handed_over;
    call.sent_to = replica.began;
    call.prefill_cached = handoff.cached_tokens;
    Push(handoff.at, Kind::kFrames, request);
  }

  void Compute(size_t request, std::optional<double> handed_over) {
    const size_t index = calls_[request].replica;
    SimReplica& server = *replicas_[index].server;
    const double next = server.next();
    server.Arrive(request, requests_[request].keys, requests_[request].output_tokens, now_, handed_over);
    if (server.next() != next) Push(server.next(), Kind::kStep, index);
  }

  // The last frame of a handoff is there.
  void Frames(size_t request) {
    Replica& replica = replicas_[calls_[request].replica];
    if (!replica.up || replica.began != calls_[request].sent_to) return Again(request);
    --replica.handed_over;
    Compute(request, options_.prefill.compute_share);
  }

  // Its server failed.
  void Again(size_t request) {
    Call& call = calls_[request];
    gateways_[call.gateway].Ended(call.replica, Fleet::Outcome::kRefused, now_);
    call.again = true;
    ++result_.retried;
    Push(now_, Kind::kArrive, request);
  }

  // What a server says of itself.
  ReplicaReport ReportOf(const Replica& replica) const {
    ReplicaReport report = replica.server->Report(now_, now_ - replica.began);
    report.running += replica.handed_over;
    return report;
  }

  // Whether the server sends the request back, as RoutedCall has it done: with a report, and nothing that the gateway believed
  // of this request is left.
  bool TurnsAway(Fleet* fleet, size_t index, const PrefixKeys& keys) {
    const Replica& replica = replicas_[index];
    if (ParseRoutingPolicy(options_.policy) != RoutingPolicy::kPrefix || !replica.up) return false;
    const double limit = fleet->WaitLimit(index, now_);
    const int64_t cached = fleet->views()[index].cached_tokens;
    const ReplicaReport truth = ReportOf(replica);
    if (truth.waiting_seconds <= limit) return false;
    fleet->Sent(index, keys, fleet->ExpectedPrefill(index, keys.tokens), now_);
    fleet->Report(index, truth, now_);
    fleet->Ended(index, Fleet::Outcome::kRefused, now_);
    fleet->TurnedAway(index, keys, cached);
    ++result_.turned_away;
    return true;
  }

  void Hint(size_t index, size_t request) {
    if (options_.reply_hints) {
      gateways_[calls_[request].gateway].Report(index, ReportOf(replicas_[index]), now_);
    }
  }

  void StepOf(size_t index) {
    step_events_.clear();
    replicas_[index].server->Step(&step_events_);
    for (const SimReplica::Event& event : step_events_) {
      Hint(index, event.request);
      if (!event.first_token) {
        gateways_[calls_[event.request].gateway].Ended(index, Fleet::Outcome::kServed, now_);
        const int64_t gaps = requests_[event.request].output_tokens - 1;
        if (gaps > 0) {
          result_.itl[event.request] = (now_ - calls_[event.request].first_token) / static_cast<double>(gaps);
        }
        ++ended_;
        continue;
      }
      // An answer that was cut is made again, and its client has had its first token.
      double& ttft = result_.ttft[event.request];
      ttft = std::min(ttft, now_ - requests_[event.request].arrival);
      calls_[event.request].first_token = now_;
      result_.prompt_tokens += requests_[event.request].keys.tokens;
      result_.cached_tokens +=
          result_.handed_over[event.request] ? calls_[event.request].prefill_cached : event.cached_tokens;
    }
    if (replicas_[index].server->next() != SimReplica::kNever)
      Push(replicas_[index].server->next(), Kind::kStep, index);
  }

  void Probe() {
    Snapshot snapshot{.at = now_};
    for (Replica& replica : replicas_) {
      snapshot.reports.push_back(ReportOf(replica));
      snapshot.arrived.push_back(std::exchange(replica.arrived, {}));
      snapshot.began.push_back(replica.began);
    }
    snapshots_.push_back(std::move(snapshot));
    Push(now_ + options_.stale_seconds, Kind::kDeliver, 0);
    Push(now_ + options_.probe_seconds, Kind::kProbe, 0);
  }

  void Deliver() {
    const Snapshot snapshot = std::move(snapshots_.front());
    snapshots_.pop_front();
    for (size_t i = 0; i < snapshot.reports.size(); ++i) {
      if (!replicas_[i].up || snapshot.began[i] != replicas_[i].began) continue;  // of what is gone
      for (size_t gateway = 0; gateway < gateways_.size(); ++gateway) {
        Fleet& fleet = gateways_[gateway];
        fleet.Report(i, snapshot.reports[i], snapshot.at);
        for (const size_t request : snapshot.arrived[i]) {
          if (calls_[request].gateway != gateway) fleet.Learn(i, requests_[request].keys);
        }
      }
    }
    MoveWaiting();
  }

  // New reports: what waits is looked at. As if servers said of each request how long it will wait, and nothing took time.
  void MoveWaiting() {
    std::vector<size_t> still;
    for (const size_t request : std::exchange(movable_, {})) {
      const Call& call = calls_[request];
      const std::optional<double> remaining = replicas_[call.replica].server->Remaining(request, now_);
      if (!remaining || call.moves == options_.moves) continue;
      TryMove(request, *remaining);
      still.push_back(request);
    }
    movable_.insert(movable_.end(), still.begin(), still.end());
  }

  void TryMove(size_t request, double remaining) {
    Call& call = calls_[request];
    const double waited = now_ - requests_[request].arrival;
    if (waited + remaining <= options_.objective_seconds) return;
    const PrefixKeys& keys = requests_[request].keys;
    Fleet& fleet = gateways_[call.gateway];
    const size_t from = call.replica;
    fleet.Choose(
        keys, [&](size_t slot) { return slot == from ? ReplicaView::Standing::kOut : StandingOf(slot); },
        now_,
        /*again=*/true);
    std::optional<size_t> to;
    const absl::Span<const ReplicaView> views = fleet.views();
    const auto ttft = [&](size_t i) { return PredictTtft(views[i], keys.tokens); };
    for (size_t i = 0; i < views.size(); ++i) {
      if (views[i].standing != ReplicaView::Standing::kReady) continue;
      if (!to || ttft(i) < ttft(*to)) to = i;
    }
    if (!to) return;
    const double margin = options_.move_margin * options_.objective_seconds;
    const auto work = [&](int64_t cached) {
      return views[*to].costs.Seconds(keys.tokens, std::min(cached, keys.tokens - 1));
    };
    const WaitingRequest waiting{.waited = waited,
                                 .remaining = remaining,
                                 .there = ttft(*to),
                                 .more_work = work(views[*to].cached_tokens) - work(call.cached)};
    if (!ShallMove(waiting, options_.objective_seconds, margin)) return;
    // It is not given up where it is before the other server has taken it.
    const ReplicaReport truth = ReportOf(replicas_[*to]);
    if (truth.waiting_seconds > views[*to].wait_seconds + margin) return fleet.Report(*to, truth, now_);
    Move(request, *to, views[*to].cached_tokens);
  }

  void Move(size_t request, size_t to, int64_t cached) {
    Call& call = calls_[request];
    const PrefixKeys& keys = requests_[request].keys;
    Fleet& fleet = gateways_[call.gateway];
    replicas_[call.replica].server->Withdraw(request);
    fleet.Ended(call.replica, Fleet::Outcome::kRefused, now_);
    fleet.TurnedAway(call.replica, keys, call.cached);
    fleet.Report(call.replica, ReportOf(replicas_[call.replica]), now_);
    call.replica = to;
    call.cached = cached;
    ++call.moves;
    ++result_.moved;
    fleet.Sent(to, keys, fleet.ExpectedPrefill(to, keys.tokens), now_);
    replicas_[to].arrived.push_back(request);
    Compute(request, std::nullopt);
  }

  void Change(const SimChange& change) {
    if (change.kind == SimChange::Kind::kAdd) return AddReplica(now_);
    if (change.replica >= replicas_.size()) return;
    Replica& replica = replicas_[change.replica];
    if (change.kind == SimChange::Kind::kDrain) {
      replica.draining = true;
      return;
    }
    replica.up = false;
    replica.arrived.clear();
    for (Fleet& fleet : gateways_) fleet.Forget(change.replica, now_);
    // Requests whose frames are under way find out when those come.
    replica.handed_over = 0;
    for (const size_t request : replica.server->Fail()) Again(request);
    Push(now_ + change.for_seconds, Kind::kReturn, change.replica);
  }

  void Minute() {
    double most = 0, sum = 0;
    for (Replica& replica : replicas_) {
      const double spent = replica.server->prefill_seconds() - replica.prefill_seconds;
      replica.prefill_seconds = replica.server->prefill_seconds();
      most = std::max(most, spent);
      sum += spent;
    }
    if (sum > 0) {
      result_.imbalance += most * static_cast<double>(replicas_.size()) / sum;
      ++minutes_;
    }
    Push(now_ + kMinute, Kind::kMinute, 0);
  }

  const std::vector<SimRequest>& requests_;
  const SimOptions& options_;
  std::mt19937_64 random_;
  SimPrefillPool prefill_;
  std::vector<Fleet> gateways_;
  std::vector<Replica> replicas_;
  std::vector<uint64_t> names_;  // hashes of them
  std::vector<Call> calls_;      // by request
  std::vector<size_t> movable_;  // requests that may wait
  std::deque<Snapshot> snapshots_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<SimReplica::Event> step_events_;
  uint64_t order_ = 0;
  size_t ended_ = 0;
  int minutes_ = 0;
  double now_ = 0;
  SimResult result_;
};

}  // namespace

std::vector<SimRequest> ToSimRequests(const std::vector<TraceRequest>& trace) {
  std::vector<SimRequest> requests;
  for (size_t i = 0; i < trace.size(); ++i) {
    SimRequest request{.arrival = trace[i].arrival,
                       .output_tokens = std::max<int64_t>(1, trace[i].output_tokens)};
    request.keys.tokens = std::max<int64_t>(1, trace[i].input_tokens);
    uint64_t hash = trace[i].blocks.empty() ? MixBits(~uint64_t{i}) : 0;
    const int64_t blocks = trace[i].blocks.empty()
                               ? (request.keys.tokens + kTraceBlock - 1) / kTraceBlock
                               : std::min<int64_t>(static_cast<int64_t>(trace[i].blocks.size()),
                                                   (request.keys.tokens + kTraceBlock - 1) / kTraceBlock);
    for (int64_t block = 0; block < blocks; ++block) {
      const auto id = trace[i].blocks.empty()
                          ? uint64_t{0}
                          : static_cast<uint64_t>(trace[i].blocks[static_cast<size_t>(block)]);
      hash = MixBits(hash ^ MixBits(id));
      request.keys.keys.push_back(hash);
      request.keys.ends.push_back(std::min((block + 1) * kTraceBlock, request.keys.tokens));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

double IdealHits(const std::vector<SimRequest>& requests) {
  PrefixLru cache(std::numeric_limits<int64_t>::max());
  std::vector<uint64_t> added;
  double cached = 0, all = 0;
  for (const SimRequest& request : requests) {
    cached += static_cast<double>(std::min(cache.Match(request.keys), request.keys.tokens - 1));
    all += static_cast<double>(request.keys.tokens);
    added.clear();
    cache.Touch(request.keys, request.keys.size(), &added, &added);
  }
  return all > 0 ? cached / all : 0;
}

absl::StatusOr<SimChange> ParseSimChange(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ', absl::SkipEmpty());
  const auto bad = [text] {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\": want \"SECOND add\", \"SECOND fail REPLICA SECONDS\" or \"SECOND drain REPLICA\""));
  };
  SimChange change;
  if (parts.size() < 2 || !absl::SimpleAtod(parts[0], &change.at) || !(change.at >= 0) ||
      !std::isfinite(change.at)) {
    return bad();
  }
  if (parts[1] == "add" && parts.size() == 2) return change;
  uint64_t replica = 0;
  if (parts.size() < 3 || !absl::SimpleAtoi(parts[2], &replica)) return bad();
  change.replica = replica;
  if (parts[1] == "drain" && parts.size() == 3) {
    change.kind = SimChange::Kind::kDrain;
    return change;
  }
  change.kind = SimChange::Kind::kFail;
  if (parts[1] != "fail" || parts.size() != 4 || !absl::SimpleAtod(parts[3], &change.for_seconds) ||
      !(change.for_seconds >= 0) || !std::isfinite(change.for_seconds)) {
    return bad();
  }
  return change;
}

absl::Status CheckSimPolicy(const std::string& policy) {
  if (ParseRoutingPolicy(policy) || IsOtherPolicy(policy)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("policy \"", policy, "\" is not known (see --help)"));
}

SimResult Simulate(const std::vector<SimRequest>& requests, const SimOptions& options) {
  return Simulation(requests, options).Run();
}

}  // namespace aludel
