#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "aludel/v1/handoff.pb.h"
#include "aludel/v1/load.pb.h"
#include "grpcpp/support/status.h"
#include "server/gateway/routing/policy/desired_replicas.h"
#include "server/gateway/routing/policy/fleet.h"
#include "server/observe/metrics.h"

namespace aludel {

// What this gateway believes of one model's decode servers (Fleet), for the threads of its requests, on the clock of
// MonotonicNow(): how long their queues are and what they have cached, from what it sends them and from what their replies
// say. Thread-safe.
class ModelFleet {
 public:
  using Standing = Fleet::Standing;
  using StandingOf = absl::FunctionRef<Standing(size_t slot)>;

  // `metrics` must outlive the fleet.
  ModelFleet(std::string model, const Fleet::Options& options, Metrics* metrics);

  size_t Add(const std::string& name);
  // Nothing of it is known any more, and its slot may be another's.
  void Remove(size_t slot);
  // Another process answers there now: its cache is empty.
  void Restarted(size_t slot);
  void SetPlaces(size_t slot, int places);

  struct Picked {
    size_t slot = 0;
    // Where it is set nothing was picked, and CountRefused tells of it unless another Pick follows: so many seconds too late would the first token be (Fleet::LateBy).
    std::optional<double> late;
    // What it was chosen for: with a longer queue the server shall send the request back, and it begins anew after
    // TurnedAway. Nothing where no other server is better then.
    std::optional<double> wait_limit;  // seconds
    int64_t cached_tokens = 0;         // that it is believed to have
  };
  // The server for a request with these beginnings, which counts there as so many `places` until Ended; nothing where there
  // is none. `again`: another server was picked for it before. `max_ttft`, and `time_left` where
  // that is set: seconds; of the policy kPrefix, and where the server's costs were measured.
  std::optional<Picked> Pick(const PrefixKeys& keys, StandingOf standing, bool again, int places = 1,
                             std::optional<double> max_ttft = std::nullopt,
                             double time_left = std::numeric_limits<double>::infinity());
  // A request is refused for being late.
  void CountRefused() { late_.Add({{"model", model_}, {"reason", "ttft"}}); }
  // After Ended.
  void TurnedAway(size_t slot, const PrefixKeys& keys, int64_t cached_tokens);
  // It ended otherwise, and nothing of an answer had come; after Ended.
  void NotTaken(size_t slot, const PrefixKeys& keys, int64_t cached_tokens);
  // What a server says of itself, and what others have sent there. `as_of`: when it was made, or a moment before.
  void Reported(size_t slot, const v1::LoadReport& report, absl::Time as_of);
  bool by_prefix() const { return policy_ == RoutingPolicy::kPrefix; }
  struct Asked {
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;  // as was believed
  };
  // The first token of a request that was sent at `sent` is out.
  void Started(size_t slot, absl::Time sent, const v1::Started& started, const Asked& asked);
  void Ended(size_t slot, const grpc::Status& status, int places = 1);
  // Its prefixes are cached no more.
  void ForgetCache(size_t slot);

  // What a server says that its cache holds, all or what has changed since (Fleet::CacheKnown): the keys that are known of it
  // now, nothing where that is too much to know. Or nothing is known of it any more. However much it is, Pick does not wait
  // long. Of one slot from one thread at a time, and not at the same time as Remove.
  std::optional<size_t> CacheKnown(size_t slot, absl::Span<const KeyChange> keys, int64_t key_tokens);
  std::optional<size_t> CacheChanged(size_t slot, absl::Span<const KeyChange> changes);
  void CacheUnknown(size_t slot);
  bool wants_caches() const { return by_prefix() && cache_events_; }

  // What Pick would do now, and nothing is counted.
  struct Explanation {
    RoutingDecision decision;        // of slots
    std::vector<ReplicaView> views;  // by slot
    std::vector<bool> exact;         // likewise: it says itself what it has cached
    // Likewise: seconds since it last reported its load; nothing where it never has.
    std::vector<std::optional<double>> report_age;
    int64_t key_tokens = 0;  // of the beginning that is routed by
  };
  Explanation Explain(const PrefixKeys& keys, StandingOf standing);
  // For metrics: the longest of the queues that are `ready` over their mean; 1 where all are empty.
  double Imbalance(StandingOf standing) const;
  // For autoscalers: how many servers the load of these calls for, with requests for so many places `waiting` for them.
  double Desired(StandingOf standing, int waiting = 0);

 private:
  // Seconds and tokens of prefill, later ones weighing more.
  struct Pace {
    double seconds = 0;
    double tokens = 0;
    double asked = 0;      // when a request went there, or told of it, the last time
    bool doubted = false;  // it seemed slow, and nothing was heard since: the next that tells begins anew

    bool believed() const { return tokens > 0 && !doubted; }
    double per_token() const { return seconds / tokens; }
  };

  // From an answer whose tokens took so many seconds of computing.
  void Learn(size_t slot, double computed, double tokens, double now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Seconds for a token of all servers that are believed, of which there is one.
  double Common() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of all servers, from their paces.
  void SetCosts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A server's cache is known, or not any more.
  void CountKnown(int more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unlink(size_t slot, const KnownCache& cache);

  const std::string model_;
  const RoutingPolicy policy_;
  const double objective_seconds_;
  const bool cache_events_;
  const CounterFamily decisions_;
  const CounterFamily hit_tokens_;
  const CounterFamily ejections_;
  const CounterFamily turned_away_;
  const CounterFamily stale_;
  const CounterFamily late_;
  const CounterFamily snapshots_;
  const GaugeFamily known_caches_;
  const HistogramFamily decision_seconds_;
  mutable absl::Mutex mutex_;
  Fleet fleet_ ABSL_GUARDED_BY(mutex_);
  DesiredReplicas desired_ ABSL_GUARDED_BY(mutex_);
  std::vector<Pace> paces_ ABSL_GUARDED_BY(mutex_);      // by slot
  int known_ ABSL_GUARDED_BY(mutex_) = 0;                // servers whose caches are
  std::vector<bool> reporting_ ABSL_GUARDED_BY(mutex_);  // likewise: it has reported its load once
};

}  // namespace aludel
