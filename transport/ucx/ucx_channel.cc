#include "transport/ucx/ucx_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "transport/wire.h"

namespace aludel {

UcxChannel::UcxChannel(ProgressThread* progress, UcxConnection* connection, std::string lanes,
                       std::shared_ptr<UcxChannelState> state, StatCounters* counters, uint64_t sender_id,
                       int max_inflight_sends)
    : progress_(progress),
      connection_(connection),
      lanes_(std::move(lanes)),
      state_(std::move(state)),
      counters_(counters),
      sender_id_(sender_id),
      max_inflight_sends_(max_inflight_sends) {}

UcxChannel::~UcxChannel() {
  absl::Notification closed;
  progress_->commands().Post(
      [this, &closed] { progress_->node().CloseConnection(connection_, [&closed] { closed.Notify(); }); });
  closed.WaitForNotification();
}

absl::Status UcxChannel::Reserve(size_t header_bytes) {
  if (header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("send: header has ", header_bytes, " bytes, want at most ", kMaxHeaderBytes));
  }
  if (!state_->healthy) return absl::UnavailableError("send: the peer is gone");
  if (state_->unfinished.fetch_add(1, std::memory_order_relaxed) >= max_inflight_sends_) {
    state_->unfinished.fetch_sub(1, std::memory_order_relaxed);
    return absl::ResourceExhaustedError(
        absl::StrCat("send: ", max_inflight_sends_, " sends of this channel are unfinished"));
  }
  return absl::OkStatus();
}

void UcxChannel::Send(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload,
                      std::function<void(absl::Status)> done) {
  if (absl::Status status = Reserve(header.size()); !status.ok()) {
    counters_->CountSend(status, payload.size());
    return done(std::move(status));
  }
  UcxSend send{.wire = EncodeWireHeader(MessageType::kData, sender_id_, 0, header),
               .payload = payload,
               .done = done,
               .due = {}};
  CommandQueue::Command command = [connection = connection_, send = std::move(send)]() mutable {
    connection->Queue(std::move(send));
  };
  if (progress_->commands().TryPost(command)) return;
  state_->unfinished.fetch_sub(1, std::memory_order_relaxed);
  const absl::Status status =
      absl::ResourceExhaustedError("send: the command queue of the transport is full");
  counters_->CountSend(status, payload.size());
  done(status);
}

}  // namespace aludel
