#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/status.h"
#include "server/config/gateway_options.h"
#include "server/gateway/routing/decode_prober.h"
#include "server/gateway/routing/decode_targets.h"
#include "server/gateway/routing/generate_call.h"
#include "server/gateway/routing/routed_call.h"
#include "server/gateway/routing/running_calls.h"
#include "server/gateway/routing/waiting_room.h"
#include "server/observe/metrics.h"
#include "server/process/work_clock.h"
#include "server/rpc/cache_events/cache_feeds.h"

namespace aludel {

// Finds a decode server for each request (RoutedCall) and probes all of them (DecodeProber). A request waits until there is
// a place for it (WaitingRoom). The server that the policy chooses gets it (DecodeTargets); it moves on to another server
// when the first cannot take it. Prefill servers are suggested in an order that depends on the prompt's beginning.
// An answer whose server is lost begins again elsewhere while nothing of it has left; after that another
// server of the same numerics computes it again, under the same seed, and goes on where the tokens end that
// were told, as long as its tokens are the same. For that it waits up to kRescue where the others are full or
// not ready. Every call has a deadline, a time of MonotonicNow(). Thread-safe.
class Router {
 public:
  static constexpr absl::Duration kRescue = absl::Seconds(10);

  struct Timing {
    absl::Duration probe_interval = absl::Seconds(1);
    absl::Duration probe_timeout = absl::Seconds(1);
  };
  using Request = RoutedRequest;
  using Model = DecodeTargets::Model;
  using ModelState = DecodeTargets::State;

  Router(const std::vector<Model>& models, const Timing& timing, Metrics* metrics,
         const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials(),
         const WaitingQueue::Options& waiting = {}, const Fleet::Options& routing = {});
  ~Router();  // waits for calls to end: cancel them first
  void AwaitCalls() { calls_.Await(); }

  // These are the model's decode servers from now on (DecodeTargets::SetTargets).
  void SetDecodeTargets(const std::string& model, const std::vector<ServerName>& targets);
  // Requests that name prefill servers name these, from now on.
  void SetPrefillTargets(const std::vector<ServerName>& targets);

  // The state of a model that was given to the constructor.
  ModelState State(const std::string& model) const { return targets_.StateOf(model); }
  // Wire formats that every ready server of the model offers, in the first one's order.
  std::vector<std::string> Formats(const std::string& model) const { return targets_.Formats(model); }
  // What the tokens of its usable servers depend on beside a request, each once, a line each.
  std::string Numerics(const std::string& model) const { return targets_.Numerics(model); }
  // The decode servers of its models.
  const DecodeTargets& targets() const { return targets_; }
  // Requests that its decode servers have not finished.
  int Outstanding(const std::string& model) const { return targets_.Outstanding(model); }
  // For how long one of gRPC's threads has been at one event of an answer.
  absl::Duration Silence() const { return events_.Longest(); }

  // What the policy would do with a prompt of `adapter`, or of the model where that is ""; nothing for a model that is not known.
  std::optional<DecodeTargets::Explanation> Explain(const std::string& model, const std::string& adapter,
                                                    const std::string& cache_salt,
                                                    const std::string& cache_key,
                                                    absl::Span<const int32_t> prompt) const;
  // The longest predicted wait of the model's servers over their mean.
  double Imbalance(const std::string& model) const { return targets_.Imbalance(model); }
  double Desired(const std::string& model) const {
    return targets_.Desired(model, room_->waiting_places(model));
  }

  // Of the model, that wait for a place.
  int Waiting(const std::string& model) const { return room_->waiting(model); }
  // Whether a request that comes now would be refused, whatever its prompt.
  std::optional<grpc::Status> CheckRoom(const std::string& model, const std::string& tenant,
                                        absl::Time deadline, int priority) {
    return room_->Check(model, tenant, deadline, priority);
  }

  // The observer is kept until OnEnd has returned.
  std::shared_ptr<GenerateCall> Generate(Request request, std::shared_ptr<GenerateObserver> observer);

 private:
  WorkClock events_;
  const CounterFamily cut_answers_;
  DecodeTargets targets_;
  RunningCalls calls_;
  std::unique_ptr<WaitingRoom> room_;
  absl::Mutex
      listing_;  // held while the prober is told of a change of targets_: each model's list comes on its own thread
  CacheFeeds feeds_{{.server_keys = KnownPrefixes::kMaxKeys,
                     .all_keys = KnownPrefixes::kMaxKeys}};  // the prober's thread tends them
  absl::Time feeds_tended_ = absl::InfinitePast();
  std::unique_ptr<DecodeProber> prober_;
  RoutedCall::Routing routing_;
  mutable absl::Mutex mutex_;
  std::optional<std::vector<std::string>> prefill_targets_
      ABSL_GUARDED_BY(mutex_);  // nothing: as requests have them
};

}  // namespace aludel
