#pragma once

#include <string>

#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "grpcpp/support/status.h"

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
  // Before the last OnFinished, where it was asked for.
  virtual void OnTrace(const v1::RequestTrace& /*trace*/) {}
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

// What Router is asked. `message.prefill_targets` etc. are passed on as they are, and `traceparent`, where it is not
// empty, as gRPC metadata.
struct RoutedRequest {
  std::string model;
  std::string tenant;     // whose share of the places it takes
  int tenant_weight = 1;  // how large that is, beside others'
  v1::GenerateRequest message;
  absl::Time deadline;  // of MonotonicNow()
  std::string traceparent;
  // Requests of one of these and one cache salt go to the same decode server; "": where their beginnings live.
  std::string cache_key = "";
};

}  // namespace aludel
