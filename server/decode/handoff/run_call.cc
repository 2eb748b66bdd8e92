#include "server/decode/handoff/run_call.h"

#include <utility>

#include "server/observe/trace_context.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_status.h"

namespace aludel {

RunCall::RunCall(v1::RunRequest request, absl::Time deadline, Callbacks callbacks)
    : request_(std::move(request)), callbacks_(std::move(callbacks)) {
  context_.set_deadline(ToGrpcDeadline(deadline));
}

std::shared_ptr<RunCall> RunCall::Start(v1::Prefill::Stub& stub, v1::RunRequest request, absl::Time deadline,
                                        Callbacks callbacks, const std::string& traceparent) {
  std::shared_ptr<RunCall> call(new RunCall(std::move(request), deadline, std::move(callbacks)));
  call->self_ = call;
  if (!traceparent.empty()) call->context_.AddMetadata(kTraceparent, traceparent);
  stub.async()->Run(&call->context_, &call->request_, call.get());
  call->StartRead(&call->event_);
  call->StartCall();
  return call;
}

void RunCall::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone follows
  callbacks_.on_event(event_);
  StartRead(&event_);
}

void RunCall::OnDone(const grpc::Status& status) {
  const std::shared_ptr<RunCall> self = std::move(self_);
  callbacks_.on_end(FromGrpc(status));
}

}  // namespace aludel
