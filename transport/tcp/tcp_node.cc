#include "transport/tcp/tcp_node.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "transport/monotonic_clock.h"
#include "transport/transport_options.h"

namespace aludel {

TcpNode::TcpNode(const TransportOptions& options, MessageHandler* handler, StatCounters* counters)
    : link_(options.link),
      limits_{.hello = kHelloLimit, .receive = options.receive_timeout},
      counters_(counters),
      address_{.kind = AddressKind::kTcp, .endpoint_id = RandomId(), .sockets = {}},
      inbox_{.handler = handler, .counters = counters, .endpoint_id = address_.endpoint_id} {}

absl::StatusOr<std::unique_ptr<TcpNode>> TcpNode::Open(const TransportOptions& options,
                                                       MessageHandler* handler, StatCounters* counters) {
  auto node = std::unique_ptr<TcpNode>(new TcpNode(options, handler, counters));
  absl::StatusOr<std::unique_ptr<Poller>> poller = Poller::Open();
  if (!poller.ok()) return poller.status();
  node->poller_ = *std::move(poller);
  if (options.tls.enabled()) {
    absl::StatusOr<std::unique_ptr<TcpTls>> tls = TcpTls::Open(options.tls);
    if (!tls.ok()) return tls.status();
    node->tls_ = *std::move(tls);
  }
  if (!options.accepts) return node;
  absl::StatusOr<std::unique_ptr<TcpListener>> listener = TcpListener::Open(
      options.listen, node->poller_.get(), [raw = node.get()](int socket) { raw->OnSocket(socket); });
  if (!listener.ok()) return listener.status();
  node->listener_ = *std::move(listener);
  node->address_.sockets = node->listener_->sockets();
  return node;
}

TcpNode::~TcpNode() { Shutdown(); }

void TcpNode::OnSocket(int socket) {
  if (strangers_.size() >= kMaxStrangers) {
    // Ended only, as the poller may be about to call it: Advance removes it.
    const auto oldest = std::find_if(strangers_.begin(), strangers_.end(), [](const auto& inbound) {
      return !inbound->ended() && !inbound->greeted();
    });
    if (oldest != strangers_.end())
      (*oldest)->End(absl::ResourceExhaustedError("too many have not said hello"));
  }
  absl::StatusOr<std::unique_ptr<TcpInbound>> inbound =
      TcpInbound::Accept(socket, poller_.get(), tls_.get(), &inbox_, limits_, MonotonicNow());
  if (inbound.ok()) strangers_.push_back(*std::move(inbound));
}

void TcpNode::Connect(EndpointAddress peer, absl::Time deadline, ConnectDone done) {
  auto on_stream = [this, done = std::move(done)](absl::StatusOr<std::unique_ptr<TcpStream>> stream) mutable {
    if (!stream.ok()) return done(stream.status());
    auto sender =
        std::make_unique<TcpSender>(*std::move(stream), LinkEmulator(link_, links_made_++), counters_);
    TcpSender* const raw = sender.get();
    senders_.emplace(raw, std::move(sender));
    counters_->open_channels.fetch_add(1, std::memory_order_relaxed);
    done(raw);
  };
  connectors_.push_back(std::make_unique<TcpConnector>(poller_.get(), tls_.get(), std::move(peer), deadline,
                                                       std::move(on_stream)));
}

void TcpNode::CloseSender(TcpSender* sender) {
  const auto entry = senders_.find(sender);
  entry->second->Close();
  senders_.erase(entry);
  counters_->open_channels.fetch_sub(1, std::memory_order_relaxed);
}

absl::Time TcpNode::Advance(absl::Time now) {
  absl::Time next = std::min(AdvanceConnectors(now), AdvanceInbound(now));
  if (listener_ != nullptr) next = std::min(next, listener_->Advance(now));
  for (const auto& [raw, sender] : senders_) next = std::min(next, sender->Advance(now));
  return next;
}

absl::Time TcpNode::AdvanceConnectors(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& connector : connectors_) next = std::min(next, connector->Advance(now));
  connectors_.erase(std::remove_if(connectors_.begin(), connectors_.end(),
                                   [](const auto& connector) { return connector->finished(); }),
                    connectors_.end());
  return next;
}

absl::Time TcpNode::AdvanceInbound(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  const auto look_at = [&](TcpInbound& inbound) {
    if (inbound.hungry()) inbound.OnReady();
    if (inbound.deadline() <= now)
      inbound.End(absl::DeadlineExceededError("receive: the peer takes too long"));
    next = std::min(next, inbound.hungry() ? now : inbound.deadline());
  };
  for (auto entry = strangers_.begin(); entry != strangers_.end();) {
    TcpInbound& inbound = **entry;
    if (!inbound.ended() && inbound.greeted()) {
      const auto greeted = entry++;
      if (accepted_.size() >= kMaxAccepted) inbound.End(absl::ResourceExhaustedError("too many connections"));
      accepted_.splice(accepted_.end(), strangers_, greeted);
      continue;
    }
    look_at(inbound);
    entry = inbound.ended() ? strangers_.erase(entry) : std::next(entry);
  }
  for (auto entry = accepted_.begin(); entry != accepted_.end();) {
    look_at(**entry);
    entry = (*entry)->ended() ? accepted_.erase(entry) : std::next(entry);
  }
  return next;
}

void TcpNode::Shutdown() {
  listener_.reset();
  for (const auto& connector : connectors_)
    connector->Abort(absl::CancelledError("connect: the transport was closed"));
  connectors_.clear();
  for (auto* peers : {&strangers_, &accepted_}) {
    for (const auto& inbound : *peers)
      inbound->End(absl::CancelledError("receive: the transport was closed"));
    peers->clear();
  }
}

}  // namespace aludel
