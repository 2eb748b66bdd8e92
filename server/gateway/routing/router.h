#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/status.h"
#include "server/config/gateway_options.h"
#include "server/gateway/routing/decode_prober.h"
#include "server/gateway/routing/decode_target.h"
#include "server/gateway/routing/waiting_room.h"
#include "server/observe/metrics.h"
#include "server/process/work_clock.h"

namespace aludel {

// Receives one answer. Called on gRPC's threads, one call at a time: Started, then tokens, then Finished, and
// always OnEnd last. An answer that ends without OnFinished failed with OnEnd's status. Where a server is
// lost and another one goes on with the same tokens, the observer does not hear of it.
class GenerateObserver {
 public:
  virtual ~GenerateObserver() = default;
  virtual void OnStarted(const v1::Started& started) = 0;
  // Before OnStarted, where sampling.prompt_logprobs is set: consecutive pieces from `begin` 1 on. Where another server
  // takes over, they come again from 1.
  virtual void OnPromptLogprobs(const v1::PromptLogprobs& /*piece*/) {}
  // False: no more of the answer is wanted, and OnEnd comes with CANCELLED.
  virtual bool OnToken(const v1::Token& token) = 0;
  virtual void OnFinished(const v1::Finished& finished) = 0;
  virtual void OnEnd(const grpc::Status& status) = 0;
  // The answer's server is lost. True: nothing of the answer has left, all of it is forgotten, and it begins
  // again with OnStarted. False: what was told stands.
  virtual bool Restart() = 0;
};

// One request on its way through Router.
class GenerateCall {
 public:
  virtual ~GenerateCall() = default;
  // From any thread; OnEnd follows soon, with CANCELLED if nothing else came first.
  virtual void Cancel() = 0;
};

// Finds a decode server for each request and probes all of them (DecodeProber). A request waits until there is a
// place for it
// (WaitingRoom). The server with the fewest outstanding requests gets it; it moves on to another server when the first
// cannot take it.
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
  // One request. `message.prefill_targets` etc. are passed on as they are, `traceparent` (where not empty) as metadata.
  struct Request {
    std::string model;
    std::string tenant;  // whose share of the places it takes
    v1::GenerateRequest message;
    absl::Time deadline;  // of MonotonicNow()
    std::string traceparent;
  };
  struct Model {
    DecodeExpectation expectation;
    std::vector<std::string> decode_targets;
  };
  struct ModelState {
    bool ready = false;        // a server is, or is slow at worst
    uint64_t max_context = 0;  // smallest of the ready servers; 0: none has been ready yet
    uint32_t max_choices = 0;  // largest of the ready servers; 0: none is
    std::string reason;        // why not ready, per server
  };

  Router(const std::vector<Model>& models, const Timing& timing, Metrics* metrics,
         const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials(),
         const WaitingQueue::Options& waiting = {});
  ~Router();  // waits for calls to end: cancel them first
  void AwaitCalls();

  // The state of a model that was given to the constructor.
  ModelState State(const std::string& model) const;
  // Wire formats that every ready server of the model offers, in the first one's order.
  std::vector<std::string> Formats(const std::string& model) const;
  // Requests that its decode servers have not finished.
  int Outstanding(const std::string& model) const;
  // For how long one of gRPC's threads has been at one event of an answer.
  absl::Duration Silence() const { return events_.Longest(); }

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
  class Call;

  // Not in `tried`, of these numerics ("": of any), ready, or slow if none is; fewest outstanding; null if none.
  std::shared_ptr<DecodeTarget> Pick(const std::string& model, const std::vector<DecodeTarget*>& tried,
                                     const std::string& numerics) const;
  // Whether a server that is not in `gone` may become ready that has these numerics ("": any).
  bool HasOther(const std::string& model, const std::vector<DecodeTarget*>& gone,
                const std::string& numerics) const;
  // What its usable servers take at once; 0: not known. Nothing: none is usable.
  std::optional<int> Places(const std::string& model) const;
  void CallEnded();

  WorkClock events_;
  // Answers whose decode server was lost: "restarted" or "continued" on another one, or "lost".
  const CounterFamily cut_answers_;
  absl::flat_hash_map<std::string, std::vector<std::shared_ptr<DecodeTarget>>> targets_;
  absl::Mutex mutex_;
  int running_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<WaitingRoom> room_;
  std::unique_ptr<DecodeProber> prober_;
};

}  // namespace aludel
