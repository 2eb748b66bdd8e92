#include "server/decode/handoff/credit_grants.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <string>
#include <utility>

#include "server/rpc/deadline.h"
#include "server/rpc/rpc_status.h"

namespace aludel {

struct CreditGrants::Call {
  grpc::ClientContext context;
  v1::GrantRequest request;
  v1::GrantResponse response;
};

CreditGrants::CreditGrants(v1::Prefill::Stub* stub, const TicketId& ticket, absl::Time deadline,
                           std::function<void(const absl::Status&)> lost)
    : stub_(stub), ticket_(ticket), deadline_(deadline), lost_(std::move(lost)) {}

void CreditGrants::Raise(uint64_t credit) {
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    credit_ = std::max(credit_, credit);
    if (std::exchange(sending_, true)) return;  // sent when the call in flight has ended
    credit = credit_;
  }
  Send(credit);
}

void CreditGrants::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void CreditGrants::Send(uint64_t credit) {
  auto call = std::make_shared<Call>();
  call->context.set_deadline(ToGrpcDeadline(deadline_));
  call->request.set_ticket_id(std::string(ticket_.begin(), ticket_.end()));
  call->request.set_credit_bytes(credit);
  stub_->async()->Grant(
      &call->context, &call->request, &call->response,
      [self = shared_from_this(), call, credit](const grpc::Status& status) { self->Sent(credit, status); });
}

void CreditGrants::Sent(uint64_t credit, const grpc::Status& status) {
  // A run that is gone needs no grant; its own stream reports how it ended.
  const bool lost = !status.ok() && status.error_code() != grpc::StatusCode::NOT_FOUND;
  uint64_t next = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return;
    next = credit_;
    if (!lost && next == credit) sending_ = false;
  }
  if (lost) return lost_(FromGrpc(status));
  if (next != credit) Send(next);
}

}  // namespace aludel
