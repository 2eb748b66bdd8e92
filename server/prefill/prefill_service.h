#pragma once

#include <cstdint>

#include "aludel/v1/handoff.grpc.pb.h"
#include "server/prefill/prefill_run.h"
#include "server/rpc/call_limit.h"
#include "transport/monotonic_clock.h"

namespace aludel {

// The Prefill service: describes this server, and starts a PrefillRun for each Run. Thread-safe.
class PrefillService : public v1::Prefill::CallbackService {
 public:
  // `context` must outlive every run.
  PrefillService(const PrefillContext& context, uint64_t epoch)
      : context_(context),
        epoch_(epoch),
        began_(MonotonicNow()),
        calls_(context.options->grpc_limits.max_calls) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* call, const v1::DescribeRequest* request,
                                     v1::PrefillDescription* response) override;
  grpc::ServerWriteReactor<v1::RunEvent>* Run(grpc::CallbackServerContext* call,
                                              const v1::RunRequest* request) override;

  grpc::ServerUnaryReactor* Grant(grpc::CallbackServerContext* call, const v1::GrantRequest* request,
                                  v1::GrantResponse* response) override;
  grpc::ServerUnaryReactor* ResetCache(grpc::CallbackServerContext* call,
                                       const v1::ResetCacheRequest* request,
                                       v1::ResetCacheResponse* response) override;

 private:
  const PrefillContext& context_;
  const uint64_t epoch_;  // of this process
  const absl::Time began_;
  const CallLimit calls_;  // of Run
};

}  // namespace aludel
