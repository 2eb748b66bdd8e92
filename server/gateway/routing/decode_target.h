#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "grpcpp/security/credentials.h"
#include "server/observe/metrics.h"
#include "server/rpc/handoff_version.h"

namespace aludel {

// What a decode server must be, to serve a model here.
struct DecodeExpectation {
  std::string model;                  // served name
  std::string tokenizer_fingerprint;  // of the tokenizer that makes this gateway's prompts; "": not compared
};

// One decode server: its channel, and what its last probe said. Thread-safe.
class DecodeTarget {
 public:
  DecodeTarget(std::string target, DecodeExpectation expectation,
               const std::shared_ptr<grpc::ChannelCredentials>& credentials, Metrics* metrics);

  const std::string& name() const { return name_; }
  v1::Decode::Stub* stub() const { return stub_.get(); }
  bool ready() const { return ready_.load(std::memory_order_relaxed); }
  uint64_t max_context() const { return max_context_.load(std::memory_order_relaxed); }
  uint32_t max_choices() const { return max_choices_.load(std::memory_order_relaxed); }
  // That a request may force.
  std::vector<std::string> formats() const;
  // The model's identity and what else its tokens depend on: two servers of equal texts continue each other's
  // answers.
  // "": it has not said so.
  std::string numerics() const;
  // Why it is not ready; "" when it is.
  std::string reason() const;

  // Unfinished calls: the server with the fewest gets the next request.
  std::atomic<int> outstanding{0};

  // A probe's answer.
  void Described(const v1::DecodeDescription& description);
  // A probe or a call found it unreachable: no requests until a probe succeeds.
  void Down(const std::string& reason);

 private:
  void SetState(bool ready, const std::string& reason);

  const std::string name_;
  const DecodeExpectation expectation_;
  const GaugeFamily ready_metric_;
  std::unique_ptr<v1::Decode::Stub> stub_;
  std::atomic<bool> ready_{false};
  std::atomic<uint64_t> max_context_{0};
  std::atomic<uint32_t> max_choices_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> formats_ ABSL_GUARDED_BY(mutex_);
  std::string numerics_ ABSL_GUARDED_BY(mutex_);
  std::string reason_ ABSL_GUARDED_BY(mutex_) = "not probed yet";
};

}  // namespace aludel
