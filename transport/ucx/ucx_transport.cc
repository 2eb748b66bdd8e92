#include "transport/ucx/ucx_transport.h"

#include <utility>

#include "absl/synchronization/notification.h"
#include "transport/monotonic_clock.h"
#include "transport/transport_options.h"
#include "transport/ucx/ucx_channel.h"
#include "transport/ucx/ucx_memory.h"
#include "transport/wire.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Open(const TransportOptions& options,
                                                              MessageHandler* handler) {
  auto transport = std::unique_ptr<UcxTransport>(new UcxTransport(options));
  absl::StatusOr<std::unique_ptr<UcxContext>> context = UcxContext::Open(options);
  if (!context.ok()) return context.status();
  transport->context_ = *std::move(context);
  absl::StatusOr<std::unique_ptr<UcxNode>> node =
      UcxNode::Open(*transport->context_, options, handler, transport->counters_.get());
  if (!node.ok()) return node.status();
  if (options.accepts) transport->address_ = EncodeAddress((*node)->address());
  transport->endpoint_id_ = (*node)->address().endpoint_id;
  absl::StatusOr<std::unique_ptr<ProgressThread>> progress = ProgressThread::Start(*std::move(node));
  if (!progress.ok()) return progress.status();
  transport->progress_ = *std::move(progress);
  return transport;
}

absl::StatusOr<std::unique_ptr<Channel>> UcxTransport::Connect(absl::string_view address,
                                                               absl::Duration timeout) {
  absl::StatusOr<EndpointAddress> peer = ParseAddress(address, AddressKind::kUcx);
  if (!peer.ok()) return peer.status();

  absl::Notification finished;
  absl::StatusOr<std::unique_ptr<Channel>> channel;
  const absl::Time deadline = MonotonicNow() + timeout;
  progress_->commands().Post([&, this] {
    auto on_connection = [&, this](absl::StatusOr<UcxConnection*> connection) {
      if (connection.ok()) {
        channel = std::make_unique<UcxChannel>(progress_.get(), *connection, (*connection)->lanes(),
                                               (*connection)->state(), counters_.get(), endpoint_id_,
                                               max_inflight_sends_);
      } else {
        channel = connection.status();
      }
      finished.Notify();
    };
    progress_->node().Connect(*std::move(peer), deadline, on_connection);
  });
  // The progress thread keeps the deadline.
  finished.WaitForNotification();
  return channel;
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> UcxTransport::Allocate(size_t bytes) {
  return UcxMemory::Allocate(*context_, bytes);
}

}  // namespace aludel
