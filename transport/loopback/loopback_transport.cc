#include "transport/loopback/loopback_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/heap_region.h"
#include "transport/loopback/loopback_registry.h"
#include "transport/transport_options.h"
#include "transport/wire.h"

namespace aludel {
namespace {

class LoopbackChannel : public Channel {
 public:
  static absl::StatusOr<std::unique_ptr<Channel>> Open(std::shared_ptr<LoopbackNode> peer,
                                                       const TransportOptions& options,
                                                       StatCounters* counters) {
    auto channel = std::unique_ptr<LoopbackChannel>(new LoopbackChannel(std::move(peer), options, counters));
    if (absl::Status status = channel->peer_->AddLink(&channel->link_); !status.ok()) return status;
    return channel;
  }

  ~LoopbackChannel() override {
    peer_->RemoveLink(&link_);
    link_.sender_counters->open_channels.fetch_sub(1, std::memory_order_relaxed);
  }

  void Send(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload,
            std::function<void(absl::Status)> done) override {
    if (header.size() > kMaxHeaderBytes) {
      const absl::Status status = absl::InvalidArgumentError(
          absl::StrCat("send: header has ", header.size(), " bytes, want at most ", kMaxHeaderBytes));
      link_.sender_counters->CountSend(status, payload.size());
      return done(status);
    }
    peer_->Send(&link_, {std::vector<uint8_t>(header.begin(), header.end()), payload, std::move(done), {}});
  }

  bool healthy() const override { return peer_->open(); }
  std::string lanes() const override { return "loopback"; }

 private:
  LoopbackChannel(std::shared_ptr<LoopbackNode> peer, const TransportOptions& options, StatCounters* counters)
      : peer_(std::move(peer)), link_(options.link, options.max_inflight_sends, counters) {
    counters->open_channels.fetch_add(1, std::memory_order_relaxed);
  }

  const std::shared_ptr<LoopbackNode> peer_;
  LoopbackLink link_;  // known to peer_ while this lives
};

}  // namespace

LoopbackTransport::LoopbackTransport(const TransportOptions& options, MessageHandler* handler)
    : options_(options),
      endpoint_id_(RandomId()),
      node_(std::make_shared<LoopbackNode>(handler, &counters_)) {
  LoopbackRegistry::Get().Add(endpoint_id_, node_);
}

LoopbackTransport::~LoopbackTransport() {
  LoopbackRegistry::Get().Remove(endpoint_id_);
  node_->Shutdown();
}

std::string LoopbackTransport::address() const {
  return EncodeAddress({.kind = AddressKind::kLoopback, .endpoint_id = endpoint_id_, .sockets = {}});
}

absl::StatusOr<std::unique_ptr<Channel>> LoopbackTransport::Connect(absl::string_view address,
                                                                    absl::Duration /*timeout*/) {
  absl::StatusOr<EndpointAddress> peer = ParseAddress(address, AddressKind::kLoopback);
  if (!peer.ok()) return peer.status();
  std::shared_ptr<LoopbackNode> node = LoopbackRegistry::Get().Find(peer->endpoint_id);
  if (node == nullptr) {
    return absl::UnavailableError("connect: no loopback endpoint of this address in this process");
  }
  return LoopbackChannel::Open(std::move(node), options_, &counters_);
}

absl::StatusOr<std::unique_ptr<MemoryRegion>> LoopbackTransport::Allocate(size_t bytes) {
  return AllocateHeapRegion(bytes);
}

}  // namespace aludel
