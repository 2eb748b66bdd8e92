#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "server/decode/plan/planner.h"
#include "server/decode/plan/prefill_demand.h"
#include "server/decode/plan/site_links.h"
#include "server/observe/metrics.h"
#include "server/process/timer.h"
#include "server/rpc/outlier.h"
#include "server/rpc/peer_health.h"
#include "server/rpc/server_name.h"
#include "server/rpc/slow_start.h"

namespace aludel {

// The prefill servers of a decode server: probes each at a bounded rate, refuses those that cannot feed this
// model (logged and exported with the reason), and knows which are usable now. One that is not is probed
// again at once, then with a doubling interval, so that a server that (re)starts is used soon. Servers come and go
// (SetTargets); a server's index is its own until kKept after it has gone and its last run has ended. Thread-safe.
//
//   unknown -> ready <-> slow -> down (PeerHealth)      refused (wrong version, model or formats)
// Every answer to a probe moves a target to ready or refused. Slow ones are used where none is ready. One that answers
// probes while runs fail there is not ready for a while (Outlier), and one that has just started has a small weight
// (slow_start.h), unless that is so of most.
class PrefillPool {
 public:
  struct Options {
    std::vector<std::string> targets;
    absl::Duration probe_interval;
    absl::Duration probe_max_interval;
    absl::Duration probe_timeout;
    v1::ModelIdentity model;              // of this server
    std::vector<v1::WireFormat> formats;  // of this server, best first
    std::string receiver_address;
    std::vector<SiteLimit> site_limits;
    GrpcTlsOptions grpc_tls;
    double slow_start_seconds = kSlowStartSeconds;
  };

  // `timer` and `metrics` must outlive the pool.
  PrefillPool(Options options, Timer* timer, Metrics* metrics);
  // Cancels probes and waits for them.
  ~PrefillPool();

  // How long a plan for a server that has gone may be kept.
  static constexpr absl::Duration kKept = absl::Minutes(10);

  // These are the servers from now on. Those that were there stay as they are. One that is not named any more is not ready,
  // and its runs go on. Returns the names of those that have gone, whose label values are the caller's to forget.
  std::vector<std::string> SetTargets(const std::vector<ServerName>& targets);
  // By index: the order of options.targets, and of their coming. What has gone is not ready.
  std::vector<PlanTarget> Snapshot() const;
  // These are this server's formats from now on, best first.
  void SetFormats(std::vector<v1::WireFormat> formats);
  // Those that are there.
  std::vector<std::pair<std::string, v1::Prefill::Stub*>> Servers() const;
  // The same, to ask what they have stored.
  struct Server {
    std::string name;
    std::shared_ptr<grpc::Channel> channel;
    bool usable = false;
  };
  std::vector<Server> CacheServers() const;
  v1::Prefill::Stub& stub(size_t target) const {
    absl::MutexLock lock(&mutex_);
    return *targets_[target]->stub;
  }
  // A run ended so: takes the target down until a probe succeeds if the reason says that it is gone, and has others
  // preferred if it took too long. Where several in a row fail, the target is left out for a while, whatever probes say. What
  // it merely refuses says nothing about its health.
  void ReportRunFailure(size_t target, const absl::Status& status);
  // All of a run came.
  void ReportRunSuccess(size_t target);
  // A handoff of so many tokens, and of about so many bytes, has been asked for there: work that its last report may not
  // have, and a part of the link to its site.
  SiteLinks::Use BeginRun(size_t target, int64_t tokens, double expected_bytes);
  // So many tokens of what was asked for are computed: what still runs of it only sends.
  void Computed(size_t target, int64_t tokens);
  // It has ended: so many bytes came.
  void EndRun(size_t target, int64_t tokens, const SiteLinks::Use& use, double bytes);
  // Of the limit of each site that has one: what was used lately.
  std::map<std::string, double> SiteShares(absl::Time now) const;
  // For autoscalers: how many servers this one's handoffs keep busy (PrefillDemand).
  double Desired(absl::Time now);
  // Something of a run came from there.
  void Heard(size_t target);
  // The load that a server reports at the end of a computation: fresher for planning than its last probe.
  void ReportLoad(size_t target, int64_t waiting_tokens, double tokens_per_second);

 private:
  enum class State : uint8_t { kUnknown, kReady, kSlow, kDown, kRefused };
  static const char* Name(State state);  // a label of metrics
  struct Target {
    ServerName server;
    bool gone = false;
    absl::Time gone_at;
    int runs = 0;  // that have not ended
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::Prefill::Stub> stub;
    State state = State::kUnknown;  // exported; of what health says unless it is kRefused
    PeerHealth health;
    Outlier outlier;
    std::string reason;
    uint64_t epoch = 0;
    absl::Time began = absl::InfinitePast();  // the process; InfinitePast(): not known
    std::vector<FormatOffer> described;       // all of its formats
    std::vector<FormatOffer> offers;          // those that this server has, too
    std::vector<std::string> formats;         // their names
    std::string site;
    int64_t waiting_tokens = 0;  // as it reported
    int64_t asked_tokens = 0;    // of this server's handoffs from it
    double tokens_per_second = 0;
    absl::Duration retry;  // interval between the last two questions in vain; zero: the last was none
    Timer::Id timer = 0;
    grpc::ClientContext* probe = nullptr;  // in flight
  };
  struct Probe;

  // What it shares of what it has described.
  void Share(Target& target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The index of the server, which is new there.
  size_t Place(const ServerName& server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(Target& target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartProbe(size_t index);
  void OnProbe(size_t index, absl::Time sent, const absl::Status& status,
               const v1::PrefillDescription& description);
  static State StateOf(const PeerHealth& health);
  // By index: whether it may be asked, and its weight.
  struct Standing {
    bool usable = false;
    double weight = 1;
  };
  std::vector<Standing> Standings(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetState(Target& target, State state, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Timer* const timer_;
  const GaugeFamily state_metric_;
  const CounterFamily ejections_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  mutable absl::Mutex mutex_;
  std::vector<v1::WireFormat> formats_ ABSL_GUARDED_BY(mutex_);           // of this server
  std::vector<std::unique_ptr<Target>> targets_ ABSL_GUARDED_BY(mutex_);  // by index
  double asked_tokens_ ABSL_GUARDED_BY(mutex_) = 0;                       // of all handoffs so far
  PrefillDemand demand_ ABSL_GUARDED_BY(mutex_);
  SiteLinks sites_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int probes_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Ok if a prefill server that describes itself so can feed `model` with at least one of `formats`; then
// `shared` has the formats both have, in the order of `formats`. Otherwise says what was found and expected.
absl::Status CheckCompatible(const v1::ModelIdentity& model, absl::Span<const v1::WireFormat> formats,
                             const v1::PrefillDescription& description, std::vector<std::string>* shared);

}  // namespace aludel
