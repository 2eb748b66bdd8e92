#include "server/decode/load/load_service.h"

#include "server/handoff/caller_identity.h"
#include "server/rpc/rpc_status.h"

namespace aludel {

grpc::ServerUnaryReactor* LoadService::Report(grpc::CallbackServerContext* call,
                                              const v1::LoadRequest* request, v1::LoadReport* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  if (const absl::Status allowed = CheckCaller(*call, *identities_); !allowed.ok()) {
    reactor->Finish(ToGrpc(allowed));
    return reactor;
  }
  *response = reporter_->Report();
  const bool same = request->epoch() == response->epoch();
  reporter_->prefixes().Read(same ? request->prefixes_end() : 0, response);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace aludel
