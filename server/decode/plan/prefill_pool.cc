#include "server/decode/plan/prefill_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel.h"
#include "server/handoff/identity.h"
#include "server/host/model_host.h"
#include "server/rpc/callback_threads.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_status.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Of a server that does not answer. Servers of one machine often start together.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(50);

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

// Whether a run that ended so failed for what its server is or does.
bool IsFailure(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsInternal(status) ||
         absl::IsUnknown(status) || absl::IsDataLoss(status);
}

std::shared_ptr<grpc::Channel> MakeChannel(const ServerName& server, absl::Duration max_backoff,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  KeepCallbackThreads();
  grpc::ChannelArguments arguments;
  // gRPC would wait two minutes between attempts; our probes set the pace.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(kFirstRetry)));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   static_cast<int>(absl::ToInt64Milliseconds(max_backoff)));
  if (!server.tls_name.empty()) arguments.SetSslTargetNameOverride(server.tls_name);
  return grpc::CreateCustomChannel(server.target, credentials, arguments);
}

}  // namespace

struct PrefillPool::Probe {
  grpc::ClientContext context;
  v1::DescribeRequest request;
  v1::PrefillDescription description;
};

absl::Status CheckCompatible(const v1::ModelIdentity& model, absl::Span<const v1::WireFormat> formats,
                             const v1::PrefillDescription& description, std::vector<std::string>* shared) {
  if (description.protocol_version() != kHandoffVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("protocol version is ", description.protocol_version(), ", want ", kHandoffVersion));
  }
  const std::vector<std::string> reasons = WhyNoPair(FromProto(description.model()), FromProto(model));
  if (!reasons.empty()) return absl::FailedPreconditionError(absl::StrJoin(reasons, "; "));
  shared->clear();
  const auto describe = [](const v1::WireFormat& format) {
    return absl::StrCat(format.name(), "@", format.artifact_hash().substr(0, 12));
  };
  std::vector<std::string> theirs;
  for (const v1::WireFormat& format : description.formats()) theirs.push_back(describe(format));
  std::vector<std::string> ours;
  for (const v1::WireFormat& format : formats) {
    ours.push_back(describe(format));
    for (const v1::WireFormat& other : description.formats()) {
      if (other.name() == format.name() && other.artifact_hash() == format.artifact_hash()) {
        shared->push_back(format.name());
      }
    }
  }
  if (shared->empty()) {
    return absl::FailedPreconditionError(absl::StrCat("no format in common: it has ",
                                                      absl::StrJoin(theirs, ", "), ", want one of ",
                                                      absl::StrJoin(ours, ", ")));
  }
  return absl::OkStatus();
}

PrefillPool::PrefillPool(Options options, Timer* timer, Metrics* metrics)
    : options_(std::move(options)),
      timer_(timer),
      state_metric_(metrics->Gauge("aludel_prefill_target_state", "1 at the state a prefill server is in.")),
      ejections_(metrics->Counter("aludel_prefill_ejections_total",
                                  "Prefill servers left out for a while because handoffs failed there.")),
      credentials_(MakeChannelCredentials(options_.grpc_tls)),
      formats_(options_.formats),
      sites_(options_.site_limits) {
  ejections_.Add({}, 0);
  SetTargets({options_.targets.begin(), options_.targets.end()});
}

std::vector<std::string> PrefillPool::SetTargets(const std::vector<ServerName>& targets) {
  std::vector<std::string> left;
  std::vector<size_t> fresh;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& target : targets_) {
      if (target->gone || std::find(targets.begin(), targets.end(), target->server) != targets.end())
        continue;
      Leave(*target);
      left.push_back(target->server.target);
    }
    for (const ServerName& server : targets) {
      const bool known = std::any_of(targets_.begin(), targets_.end(), [&server](const auto& target) {
        return !target->gone && target->server == server;
      });
      if (!known) fresh.push_back(Place(server));
    }
  }
  for (const size_t index : fresh) StartProbe(index);
  return left;
}

size_t PrefillPool::Place(const ServerName& server) {
  const auto same = [&server](const auto& target) { return target->server == server; };
  auto place = std::find_if(targets_.begin(), targets_.end(), same);
  if (place != targets_.end()) {
    (*place)->gone = false;
    return static_cast<size_t>(place - targets_.begin());
  }
  place = std::find_if(targets_.begin(), targets_.end(), [](const auto& target) {
    return target->gone && target->runs == 0 && target->probe == nullptr &&
           MonotonicNow() - target->gone_at > kKept;
  });
  if (place == targets_.end()) place = targets_.insert(place, nullptr);
  auto target = std::make_unique<Target>(Target{.server = server});
  target->channel = MakeChannel(server, options_.probe_max_interval, credentials_);
  target->stub = v1::Prefill::NewStub(target->channel);
  *place = std::move(target);
  return static_cast<size_t>(place - targets_.begin());
}

void PrefillPool::Leave(Target& target) {
  spdlog::info("prefill server {} is not one of this server's any more", target.server.target);
  target.gone = true;
  target.gone_at = MonotonicNow();
  target.health = PeerHealth();
  target.outlier = Outlier();
  target.state = State::kUnknown;
  target.reason.clear();
  target.retry = absl::ZeroDuration();
  timer_->Cancel(target.timer);
  if (target.probe != nullptr) target.probe->TryCancel();
  for (const State state : {State::kReady, State::kSlow, State::kDown, State::kRefused}) {
    state_metric_.Remove({{"target", target.server.target}, {"state", Name(state)}});
  }
}

void PrefillPool::Share(Target& target) {
  target.offers.clear();
  target.formats.clear();
  for (const v1::WireFormat& ours : formats_) {
    FormatOffer offer{ours.name(), ours.artifact_hash()};
    if (std::find(target.described.begin(), target.described.end(), offer) == target.described.end())
      continue;
    if (std::find(target.formats.begin(), target.formats.end(), offer.name) == target.formats.end()) {
      target.formats.push_back(offer.name);
    }
    target.offers.push_back(std::move(offer));
  }
}

void PrefillPool::SetFormats(std::vector<v1::WireFormat> formats) {
  absl::MutexLock lock(&mutex_);
  formats_ = std::move(formats);
  for (const auto& target : targets_) Share(*target);
}

std::vector<std::pair<std::string, v1::Prefill::Stub*>> PrefillPool::Servers() const {
  std::vector<std::pair<std::string, v1::Prefill::Stub*>> servers;
  absl::MutexLock lock(&mutex_);
  for (const auto& target : targets_) {
    if (!target->gone) servers.emplace_back(target->server.target, target->stub.get());
  }
  return servers;
}

std::vector<PrefillPool::Server> PrefillPool::CacheServers() const {
  std::vector<Server> servers;
  absl::MutexLock lock(&mutex_);
  for (const auto& target : targets_) {
    if (!target->gone) servers.push_back({target->server.target, target->channel, target->health.usable()});
  }
  return servers;
}

PrefillPool::~PrefillPool() {
  std::vector<Timer::Id> timers;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (const auto& target : targets_) {
      timers.push_back(target->timer);
      if (target->probe != nullptr) target->probe->TryCancel();
    }
  }
  for (const Timer::Id id : timers) timer_->CancelAndWait(id);
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int* probes) { return *probes == 0; }, &probes_in_flight_));
}

void PrefillPool::StartProbe(size_t index) {
  auto probe = std::make_shared<Probe>();
  probe->request.set_protocol_version(kHandoffVersion);
  probe->request.set_receiver_address(options_.receiver_address);
  probe->context.set_deadline(ToGrpcDeadline(MonotonicNow() + options_.probe_timeout));
  v1::Prefill::Stub* stub = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    Target& target = *targets_[index];
    if (stopping_ || target.gone || target.probe != nullptr) return;
    ++probes_in_flight_;
    target.probe = &probe->context;
    stub = target.stub.get();
  }
  stub->async()->Describe(&probe->context, &probe->request, &probe->description,
                          [this, index, probe, sent = MonotonicNow()](const grpc::Status& status) {
                            OnProbe(index, sent, FromGrpc(status), probe->description);
                          });
}

void PrefillPool::OnProbe(size_t index, absl::Time sent, const absl::Status& status,
                          const v1::PrefillDescription& description) {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> shared;
  absl::Status compatible;
  if (status.ok()) compatible = CheckCompatible(options_.model, formats_, description, &shared);
  --probes_in_flight_;
  Target& target = *targets_[index];
  target.probe = nullptr;
  if (stopping_ || target.gone) return;
  const bool refused = absl::IsFailedPrecondition(status) || absl::IsPermissionDenied(status);
  if (absl::IsDeadlineExceeded(status)) {
    target.health.Missed(sent, MonotonicNow());
    const State state = StateOf(target.health);
    if (state != State::kReady) {
      SetState(target, state, std::string(status.message()));
    } else if (target.state != State::kReady) {
      SetState(target, state, absl::StrJoin(target.formats, ", "));
    }
  } else if (!status.ok() && !refused) {
    target.health.Gone();
    SetState(target, State::kDown, std::string(status.message()));
  } else if (!status.ok() || !compatible.ok()) {
    target.health.Gone();
    SetState(target, State::kRefused, std::string(status.ok() ? compatible.message() : status.message()));
  } else {
    if (target.epoch != description.epoch()) {
      if (target.state == State::kReady)
        spdlog::info("prefill server {} has restarted", target.server.target);
      target.outlier = Outlier();
      target.began = description.has_age_seconds() ? MonotonicNow() - absl::Seconds(description.age_seconds())
                                                   : absl::InfinitePast();
    }
    target.health.Answered(MonotonicNow());
    target.described.clear();
    for (const v1::WireFormat& format : description.formats()) {
      target.described.push_back({format.name(), format.artifact_hash()});
    }
    Share(target);
    target.epoch = description.epoch();
    target.site = description.site();
    target.waiting_tokens = static_cast<int64_t>(description.waiting_tokens());
    target.tokens_per_second = description.prefill_tokens_per_second();
    const std::string ropes = CompareRopes(FromProto(description.model()), FromProto(options_.model));
    SetState(target, State::kReady,
             absl::StrCat(absl::StrJoin(target.formats, ", "), ropes.empty() ? "" : "; ", ropes));
  }
  const bool well = target.state == State::kReady && target.health.misses() == 0;
  target.retry = well ? absl::ZeroDuration()
                      : std::min(std::max(2 * target.retry, kFirstRetry), options_.probe_max_interval);
  const absl::Duration interval = well ? options_.probe_interval : target.retry;
  target.timer = timer_->At(MonotonicNow() + interval, [this, index] { StartProbe(index); });
}

const char* PrefillPool::Name(State state) {
  switch (state) {
    case State::kUnknown:
      break;
    case State::kReady:
      return "ready";
    case State::kSlow:
      return "slow";
    case State::kDown:
      return "down";
    case State::kRefused:
      return "refused";
  }
  return "unknown";
}

PrefillPool::State PrefillPool::StateOf(const PeerHealth& health) {
  switch (health.state()) {
    case PeerHealth::State::kUnknown:
      break;
    case PeerHealth::State::kReady:
      return State::kReady;
    case PeerHealth::State::kSlow:
      return State::kSlow;
    case PeerHealth::State::kDown:
      return State::kDown;
  }
  return State::kUnknown;
}

void PrefillPool::SetState(Target& target, State state, const std::string& reason) {
  if (target.state == state && target.reason == reason) return;
  target.state = state;
  target.reason = reason;
  spdlog::log(state == State::kReady ? spdlog::level::info : spdlog::level::warn,
              "prefill server {} is {}: {}", target.server.target, Name(state), reason);
  for (const State other : {State::kReady, State::kSlow, State::kDown, State::kRefused}) {
    state_metric_.Set({{"target", target.server.target}, {"state", Name(other)}}, state == other ? 1 : 0);
  }
}

std::vector<PrefillPool::Standing> PrefillPool::Standings(absl::Time now) const {
  int ready = 0, ejected = 0;
  for (const auto& target : targets_) {
    if (target->state != State::kReady) continue;
    ++ready;
    ejected += target->outlier.ejected(Seconds(now)) ? 1 : 0;
  }
  const bool eject = Outlier::MayEject(ejected, ready);
  std::vector<Standing> standings(targets_.size());
  std::vector<size_t> chosen;
  std::vector<std::optional<double>> ages;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Target& target = *targets_[i];
    if (target.gone || target.state != (ready > 0 ? State::kReady : State::kSlow)) continue;
    if (eject && target.outlier.ejected(Seconds(now))) continue;
    chosen.push_back(i);
    ages.emplace_back();
    if (target.began != absl::InfinitePast()) ages.back() = absl::ToDoubleSeconds(now - target.began);
  }
  const std::vector<double> weights = SlowStartWeights(ages, options_.slow_start_seconds);
  for (size_t i = 0; i < chosen.size(); ++i) standings[chosen[i]] = {true, weights[i]};
  return standings;
}

std::vector<PlanTarget> PrefillPool::Snapshot() const {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = MonotonicNow();
  const std::vector<Standing> standings = Standings(now);
  std::vector<PlanTarget> targets;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Target& target = *targets_[i];
    targets.push_back({target.server.target, standings[i].usable, target.formats,
                       std::max(target.waiting_tokens, target.asked_tokens), target.tokens_per_second,
                       target.gone, target.site, sites_.Open(target.site, now),
                       sites_.UsedShare(target.site, now), standings[i].weight, target.offers});
  }
  return targets;
}

void PrefillPool::ReportRunFailure(size_t index, const absl::Status& status) {
  if (!IsFailure(status)) return;
  absl::MutexLock lock(&mutex_);
  Target& target = *targets_[index];
  if (target.gone) return;
  if (target.outlier.Failed(Seconds(MonotonicNow()))) {
    ejections_.Add({});
    spdlog::warn("prefill server {} is left out for a while, as handoffs fail there: {}",
                 target.server.target, status.ToString());
  }
  if (!target.health.usable()) return;
  if (absl::IsUnavailable(status)) {
    target.health.Gone();
  } else if (absl::IsDeadlineExceeded(status)) {
    target.health.Late();
  } else {
    return;  // it is there, and answers in time
  }
  SetState(target, StateOf(target.health), std::string(status.message()));
}

void PrefillPool::ReportRunSuccess(size_t index) {
  absl::MutexLock lock(&mutex_);
  targets_[index]->outlier.Succeeded();
}

void PrefillPool::Heard(size_t index) {
  absl::MutexLock lock(&mutex_);
  targets_[index]->health.Heard(MonotonicNow());
}

SiteLinks::Use PrefillPool::BeginRun(size_t index, int64_t tokens, double expected_bytes) {
  absl::MutexLock lock(&mutex_);
  targets_[index]->asked_tokens += tokens;
  asked_tokens_ += static_cast<double>(tokens);
  ++targets_[index]->runs;
  SiteLinks::Use use{targets_[index]->site, expected_bytes};
  sites_.Begin(use, MonotonicNow());
  return use;
}

double PrefillPool::Desired(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  double sum = 0;
  int known = 0;
  for (const auto& target : targets_) {
    if (target->state != State::kReady || !(target->tokens_per_second > 0)) continue;
    sum += target->tokens_per_second;
    ++known;
  }
  return demand_.At(asked_tokens_, known > 0 ? sum / known : 0,
                    absl::ToDoubleSeconds(now - absl::UnixEpoch()));
}

void PrefillPool::Computed(size_t index, int64_t tokens) {
  absl::MutexLock lock(&mutex_);
  targets_[index]->asked_tokens -= tokens;
}

void PrefillPool::EndRun(size_t index, int64_t tokens, const SiteLinks::Use& use, double bytes) {
  absl::MutexLock lock(&mutex_);
  targets_[index]->asked_tokens -= tokens;
  --targets_[index]->runs;
  sites_.End(use, bytes, MonotonicNow());
}

std::map<std::string, double> PrefillPool::SiteShares(absl::Time now) const {
  std::map<std::string, double> shares;
  absl::MutexLock lock(&mutex_);
  for (const std::string& site : sites_.sites()) shares[site] = sites_.UsedShare(site, now);
  return shares;
}

void PrefillPool::ReportLoad(size_t index, int64_t waiting_tokens, double tokens_per_second) {
  absl::MutexLock lock(&mutex_);
  targets_[index]->waiting_tokens = waiting_tokens;
  targets_[index]->tokens_per_second = tokens_per_second;
}

}  // namespace aludel
