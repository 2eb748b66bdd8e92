#pragma once

#include "aludel/v1/handoff.grpc.pb.h"
#include "server/decode/generate_session.h"
#include "server/rpc/call_limit.h"

namespace aludel {

// The Decode service: describes this server, starts a GenerateSession for each Generate, and adds and removes
// adapters. Thread-safe.
class DecodeService : public v1::Decode::CallbackService {
 public:
  // `context` must outlive every session.
  explicit DecodeService(const DecodeContext& context)
      : context_(context), calls_(context.options->grpc_limits.max_calls) {}

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* call, const v1::DescribeRequest* request,
                                     v1::DecodeDescription* response) override;
  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(grpc::CallbackServerContext* call,
                                                        const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* ResetCache(grpc::CallbackServerContext* call,
                                       const v1::ResetCacheRequest* request,
                                       v1::ResetCacheResponse* response) override;
  grpc::ServerUnaryReactor* LoadAdapter(grpc::CallbackServerContext* call,
                                        const v1::LoadAdapterRequest* request,
                                        v1::LoadAdapterResponse* response) override;
  grpc::ServerUnaryReactor* UnloadAdapter(grpc::CallbackServerContext* call,
                                          const v1::UnloadAdapterRequest* request,
                                          v1::UnloadAdapterResponse* response) override;

 private:
  const DecodeContext& context_;
  const CallLimit calls_;  // of Generate and ResetCache
};

}  // namespace aludel
