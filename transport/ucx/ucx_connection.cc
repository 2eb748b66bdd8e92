#include "transport/ucx/ucx_connection.h"

#include <utility>

#include "absl/strings/str_split.h"
#include "transport/monotonic_clock.h"
#include "transport/ucx/ucx_status.h"

namespace aludel {

UcxConnection::UcxConnection(std::unique_ptr<UcxEndpoint> endpoint, const LinkEmulator& link,
                             StatCounters* counters, UcxAbandonedSends* abandoned)
    : endpoint_(std::move(endpoint)),
      lanes_(endpoint_->DescribeLanes()),
      counters_(counters),
      link_(link),
      abandoned_sends_(abandoned) {}

void UcxConnection::Queue(UcxSend send) {
  SetSequence(send.wire, next_sequence_++);
  QueueOverLink(&link_, MonotonicNow(), std::move(send), counters_, &state_->unfinished, &queue_);
}

absl::Time UcxConnection::Advance(absl::Time now) {
  if (endpoint_->error() != UCS_OK && !endpoint_->closing()) {
    state_->healthy = false;
    CloseEndpoint();  // UCX keeps requests of a failed endpoint until it is closed
  }
  if (endpoint_->closing()) {
    FailQueued();
    if (closed() || !LanesOnlyCopy(lanes_)) return absl::InfiniteFuture();
    if (now < close_began_ + kAbandonAfter) return close_began_ + kAbandonAfter;
    AbandonInFlight();
    return absl::InfiniteFuture();
  }
  while (!queue_.empty() && queue_.front().due <= now) {
    UcxSend send = std::move(queue_.front());
    queue_.pop_front();
    if (send.lost) {
      Finish(send, UCS_OK);
    } else {
      Start(std::move(send));
    }
  }
  return queue_.empty() ? absl::InfiniteFuture() : queue_.front().due;
}

void UcxConnection::BeginClose() {
  closed_by_us_ = true;
  CloseEndpoint();
  FailQueued();
}

void UcxConnection::CloseEndpoint() {
  if (endpoint_->closing()) return;
  close_began_ = MonotonicNow();
  endpoint_->Close();
}

void UcxConnection::Start(UcxSend send) {
  auto owned = std::make_unique<UcxInFlight>(UcxInFlight{this, abandoned_sends_, std::move(send)});
  UcxInFlight* const in_flight = owned.get();
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.flags = UCP_AM_SEND_FLAG_REPLY;  // lets the receiver drop this connection when a transfer hangs
  params.cb.send = &UcxConnection::OnSent;
  params.user_data = in_flight;
  in_flight_.emplace(in_flight, std::move(owned));  // before the call, in which OnSent may come
  const UcxSend& message = in_flight->send;
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(endpoint_->handle(), kActiveMessageId, message.wire.bytes.data(), message.wire.size,
                      message.payload.data(), message.payload.size(), &params);
  if (UCS_PTR_IS_PTR(request)) return;
  const auto finished = in_flight_.extract(in_flight);
  Finish(finished.mapped()->send, UCS_PTR_STATUS(request));
}

void UcxConnection::OnSent(void* request, ucs_status_t status, void* user_data) {
  ucp_request_free(request);
  auto* const in_flight = static_cast<UcxInFlight*>(user_data);
  UcxConnection* const connection = in_flight->connection;
  if (connection == nullptr) {
    in_flight->abandoned->erase(in_flight);
    return;
  }
  const auto finished = connection->in_flight_.extract(in_flight);
  connection->Finish(finished.mapped()->send, status);
}

void UcxConnection::Finish(const UcxSend& send, ucs_status_t status) {
  const absl::Status outcome = Outcome(status);
  // Before `done`, which may look; requests fail before the endpoint reports its error.
  if (absl::IsUnavailable(outcome)) state_->healthy = false;
  counters_->CountSend(outcome, send.payload.size());
  state_->unfinished.fetch_sub(1, std::memory_order_relaxed);  // first: `done` may send the next message
  send.done(outcome);
}

void UcxConnection::FailQueued() {
  while (!queue_.empty()) {
    const UcxSend send = std::move(queue_.front());
    queue_.pop_front();
    Finish(send, UCS_ERR_CANCELED);
  }
}

void UcxConnection::AbandonInFlight() {
  abandoned_ = true;
  for (auto& [in_flight, owned] : std::exchange(in_flight_, {})) {
    in_flight->connection = nullptr;
    const UcxSend& send = abandoned_sends_->emplace(in_flight, std::move(owned)).first->second->send;
    Finish(send, UCS_ERR_CANCELED);
  }
}

bool LanesOnlyCopy(absl::string_view lanes) {
  for (absl::string_view lane : absl::StrSplit(lanes, ' ')) {
    const absl::string_view transport = lane.substr(0, lane.find('/'));
    if (transport != "tcp" && transport != "posix" && transport != "cma" && transport != "sysv" &&
        transport != "self") {
      return false;
    }
  }
  return true;
}

absl::Status UcxConnection::Outcome(ucs_status_t status) const {
  if (status == UCS_OK) return absl::OkStatus();
  // A request that is cancelled because its endpoint failed bears no sign of that failure.
  if (endpoint_->error() != UCS_OK) {
    return absl::UnavailableError(FromUcs(endpoint_->error(), "send: the peer is gone").message());
  }
  if (closed_by_us_) return absl::CancelledError("send: the channel was closed");
  return FromUcs(status, "send");
}

}  // namespace aludel
