#include "transport/ucx/ucx_receiver.h"

#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/monotonic_clock.h"
#include "transport/ucx/ucx_status.h"

namespace aludel {

UcxReceiver::UcxReceiver(MessageHandler* handler, StatCounters* counters, absl::Duration timeout,
                         ControlHandler on_control)
    : handler_(handler), counters_(counters), timeout_(timeout), on_control_(std::move(on_control)) {}

UcxReceiver::~UcxReceiver() {
  for (const auto& [id, transfer] : transfers_) {
    handler_->OnPayload(id, absl::CancelledError("receive: the transport was closed"));
  }
}

absl::Status UcxReceiver::AttachTo(UcxWorker* worker) {
  worker_ = worker;
  return worker->ReceiveWith(&UcxReceiver::OnMessage, this);
}

ucs_status_t UcxReceiver::OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                    size_t payload_bytes, const ucp_am_recv_param_t* params) {
  auto* receiver = static_cast<UcxReceiver*>(self);
  const auto wire = absl::MakeConstSpan(static_cast<const uint8_t*>(header), header_bytes);
  const std::optional<ParsedHeader> message = ParseWireHeader(wire);
  const bool is_data = message.has_value() && message->type == MessageType::kData;
  if (!message.has_value() || receiver->refusing_ || (!is_data && payload_bytes != 0)) {
    receiver->counters_->CountDrop();
  } else if (is_data) {
    receiver->OnData(message->header, data, payload_bytes, *params);
  } else {
    const bool has_reply = (params->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    receiver->on_control_(*message, has_reply ? params->reply_ep : nullptr);
  }
  // UCX ends a rendezvous whose receive was never started; to the sender it looks delivered.
  return UCS_OK;
}

void UcxReceiver::OnData(absl::Span<const uint8_t> header, void* data, size_t payload_bytes,
                         const ucp_am_recv_param_t& params) {
  const MessageId id = next_id_++;
  const absl::Span<uint8_t> target = handler_->OnHeader(id, header, payload_bytes);
  if (payload_bytes == 0) {
    counters_->CountReceive(0);
    return;
  }
  if (target.size() != payload_bytes) {
    // A span of another size is a mistake of the handler; writing into it would make that worse.
    counters_->CountDrop();
    if (!target.empty()) {
      handler_->OnPayload(id, absl::InternalError(absl::StrCat("receive: the handler gave ", target.size(),
                                                               " bytes for a payload of ", payload_bytes)));
    }
    return;
  }
  if ((params.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    Pull(id, target, data, params);
    return;
  }
  std::memcpy(target.data(), data, payload_bytes);
  counters_->CountReceive(payload_bytes);
  handler_->OnPayload(id, absl::OkStatus());
}

void UcxReceiver::Pull(MessageId id, absl::Span<uint8_t> target, void* descriptor,
                       const ucp_am_recv_param_t& am_params) {
  const bool has_reply = (am_params.recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  auto transfer =
      std::make_unique<Transfer>(Transfer{this, id, target.size(), has_reply ? am_params.reply_ep : nullptr});
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &UcxReceiver::OnReceived;
  params.user_data = transfer.get();
  // On a connection that is failing, OnReceived comes before the call returns: everything is in place
  // before it.
  const absl::Time now = MonotonicNow();
  Sender& sender = senders_[transfer->from];
  if (sender.transfers++ == 0) sender.progress = now;
  transfers_.emplace(id, std::move(transfer));
  deadlines_.emplace(now + timeout_, id);
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->handle(), descriptor, target.data(), target.size(), &params);
  if (UCS_PTR_IS_PTR(request)) return;
  const absl::Status outcome = FromUcs(UCS_PTR_STATUS(request), "receive");
  Forget(id, outcome);
  Finish(id, target.size(), outcome);
}

void UcxReceiver::Forget(MessageId id, const absl::Status& status) {
  const auto transfer = transfers_.find(id);
  const auto sender = senders_.find(transfer->second->from);
  if (status.ok()) sender->second.progress = MonotonicNow();
  if (--sender->second.transfers == 0) senders_.erase(sender);
  transfers_.erase(transfer);
}

void UcxReceiver::OnReceived(void* request, ucs_status_t status, size_t bytes, void* user_data) {
  auto* transfer = static_cast<Transfer*>(user_data);
  UcxReceiver* receiver = transfer->receiver;
  const MessageId id = transfer->id;
  absl::Status outcome = FromUcs(status, "receive");
  if (outcome.ok() && bytes != transfer->bytes) {
    outcome = absl::DataLossError(absl::StrCat("receive: got ", bytes, " bytes, want ", transfer->bytes));
  }
  ucp_request_free(request);
  receiver->Forget(id, outcome);
  receiver->Finish(id, bytes, outcome);
}

void UcxReceiver::Finish(MessageId id, size_t bytes, const absl::Status& status) {
  if (status.ok()) counters_->CountReceive(bytes);
  // Cancelled by UCX means that the connection under the transfer was closed: to the handler the sender
  // is gone.
  handler_->OnPayload(id, absl::IsCancelled(status) ? absl::UnavailableError(status.message()) : status);
}

std::vector<ucp_ep_h> UcxReceiver::TakeOverdue(absl::Time now) {
  std::vector<ucp_ep_h> overdue;
  while (!deadlines_.empty()) {
    const auto [at, id] = *deadlines_.begin();
    const auto transfer = transfers_.find(id);
    const bool finished = transfer == transfers_.end();
    if (!finished && at > now) break;
    deadlines_.erase(deadlines_.begin());
    if (finished || transfer->second->from == nullptr) continue;
    const absl::Time moved_on = senders_.at(transfer->second->from).progress + timeout_;
    if (moved_on > now) {
      deadlines_.emplace(moved_on, id);
    } else {
      overdue.push_back(transfer->second->from);
    }
  }
  return overdue;
}

absl::Time UcxReceiver::next_deadline() const {
  return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
}

}  // namespace aludel
