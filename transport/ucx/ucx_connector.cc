#include "transport/ucx/ucx_connector.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/socket_address.h"
#include "transport/ucx/ucx_status.h"

namespace aludel {

UcxConnector::UcxConnector(const UcxWorker* worker, uint64_t self_id, EndpointAddress address,
                           absl::Time deadline, Done done)
    : worker_(worker),
      self_id_(self_id),
      address_(std::move(address)),
      deadline_(deadline),
      done_(std::move(done)) {}

absl::Time UcxConnector::Advance(absl::Time now) {
  if (finished_) return absl::InfiniteFuture();
  if (endpoint_ != nullptr) {
    if (endpoint_->error() != UCS_OK) {
      EndAttempt(FromUcs(endpoint_->error(), absl::StrCat("connect to ", attempt_)));
    } else if (now >= attempt_deadline_) {
      EndAttempt(absl::DeadlineExceededError(absl::StrCat("connect to ", attempt_, ": no answer in time")));
    }
    // The caller collects the discarded endpoint before the next attempt starts.
    return endpoint_ != nullptr ? attempt_deadline_ : now;
  }
  if (now >= deadline_ || next_socket_ == address_.sockets.size()) {
    Abort(last_failure_.ok() ? absl::DeadlineExceededError("connect: no time was left to try")
                             : last_failure_);
    return absl::InfiniteFuture();
  }
  StartAttempt(now);
  return endpoint_ != nullptr ? attempt_deadline_ : now;
}

void UcxConnector::StartAttempt(absl::Time now) {
  const size_t sockets_left = address_.sockets.size() - next_socket_;
  attempt_deadline_ = now + (deadline_ - now) / static_cast<int64_t>(sockets_left);
  const SocketAddress target = SocketAddress::FromEntry(address_.sockets[next_socket_++]);
  attempt_ = target.ToString();
  absl::StatusOr<std::unique_ptr<UcxEndpoint>> endpoint = UcxEndpoint::Connect(*worker_, target);
  if (!endpoint.ok()) {
    last_failure_ =
        absl::UnavailableError(absl::StrCat("connect to ", attempt_, ": ", endpoint.status().message()));
    return;
  }
  endpoint_ = *std::move(endpoint);
  nonce_ = RandomId();
  endpoint_->SendControl(EncodeWireHeader(MessageType::kPing, self_id_, nonce_, {}));
}

void UcxConnector::EndAttempt(absl::Status why) {
  last_failure_ = absl::IsDeadlineExceeded(why) ? std::move(why) : absl::UnavailableError(why.message());
  discarded_ = std::move(endpoint_);
}

bool UcxConnector::OnPong(uint64_t nonce, uint64_t sender) {
  if (finished_ || endpoint_ == nullptr || nonce != nonce_) return false;
  if (sender != address_.endpoint_id) {
    EndAttempt(absl::UnavailableError(
        absl::StrCat("connect to ", attempt_, ": another endpoint listens there, the peer was restarted or ",
                     "its address leads elsewhere from here")));
    return true;
  }
  finished_ = true;
  done_(std::move(endpoint_));
  return true;
}

void UcxConnector::Abort(absl::Status status) {
  if (finished_) return;
  finished_ = true;
  if (endpoint_ != nullptr) discarded_ = std::move(endpoint_);
  done_(std::move(status));
}

}  // namespace aludel
