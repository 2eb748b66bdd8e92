#include "transport/ucx/ucx_node.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "transport/socket_address.h"
#include "transport/transport_options.h"

namespace aludel {
namespace {

// UCX has no event for the end of what closed connections had begun.
constexpr absl::Duration kFlushPoll = absl::Milliseconds(1);

// Whether we copy what comes through it from the memory of the process that sends.
bool Copies(const UcxEndpoint& endpoint) { return absl::StrContains(endpoint.DescribeLanes(), "cma/"); }

}  // namespace

UcxNode::UcxNode(const TransportOptions& options, MessageHandler* handler, StatCounters* counters)
    : link_(options.link),
      counters_(counters),
      address_{.kind = AddressKind::kUcx, .endpoint_id = RandomId(), .sockets = {}},
      receiver_(std::make_unique<UcxReceiver>(
          handler, counters, options.receive_timeout,
          [this](const ParsedHeader& message, ucp_ep_h reply_to) { OnControl(message, reply_to); })) {}

absl::StatusOr<std::unique_ptr<UcxNode>> UcxNode::Open(const UcxContext& context,
                                                       const TransportOptions& options,
                                                       MessageHandler* handler, StatCounters* counters) {
  auto node = std::unique_ptr<UcxNode>(new UcxNode(options, handler, counters));
  absl::StatusOr<std::unique_ptr<UcxWorker>> worker = UcxWorker::Open(context);
  if (!worker.ok()) return worker.status();
  node->worker_ = *std::move(worker);
  if (absl::Status status = node->receiver_->AttachTo(node->worker_.get()); !status.ok()) return status;

  if (!options.accepts) return node;
  absl::StatusOr<std::vector<SocketAddress>> reachable = ReachableAddresses(options.ucx_devices);
  if (!reachable.ok()) return reachable.status();
  // With one address the port is visible on that interface alone.
  const SocketAddress bind_to =
      reachable->size() == 1 ? reachable->front() : SocketAddress::Wildcard(reachable->front().family());
  absl::StatusOr<std::unique_ptr<UcxListener>> listener = UcxListener::Open(*node->worker_, bind_to);
  if (!listener.ok()) return listener.status();
  node->listener_ = *std::move(listener);
  for (const SocketAddress& address : *reachable) {
    node->address_.sockets.push_back(address.WithPort(node->listener_->port()).ToEntry());
  }
  return node;
}

void UcxNode::Connect(EndpointAddress peer, absl::Time deadline, ConnectDone done) {
  auto on_endpoint = [this,
                      done = std::move(done)](absl::StatusOr<std::unique_ptr<UcxEndpoint>> endpoint) mutable {
    if (!endpoint.ok()) return done(endpoint.status());
    auto connection = std::make_unique<UcxConnection>(
        *std::move(endpoint), LinkEmulator(link_, links_made_++), counters_, &abandoned_sends_);
    UcxConnection* raw = connection.get();
    connections_.emplace(raw, std::move(connection));
    counters_->open_channels.fetch_add(1, std::memory_order_relaxed);
    done(raw);
  };
  connectors_.push_back(std::make_unique<UcxConnector>(worker_.get(), address_.endpoint_id, std::move(peer),
                                                       deadline, std::move(on_endpoint)));
  if (shutting_down()) connectors_.back()->Abort(absl::CancelledError("connect: the transport was closed"));
}

void UcxNode::CloseConnection(UcxConnection* connection, CloseDone done) {
  auto entry = connections_.find(connection);
  closing_connections_.push_back({std::move(entry->second), std::move(done)});
  connections_.erase(entry);
  counters_->open_channels.fetch_sub(1, std::memory_order_relaxed);
  connection->BeginClose();
}

absl::Time UcxNode::Advance(absl::Time now) {
  AnswerRequests();
  CloseFailedAndOverdue(now);
  absl::Time next = std::min(AdvanceConnectors(now), receiver_->next_deadline());
  if (shutting_down()) CloseWhenCopied(now);
  if (Copying(now)) next = std::min(next, accepted_.empty() ? now + kFlushPoll : copy_until_);
  for (const auto& [raw, connection] : connections_) next = std::min(next, connection->Advance(now));
  for (const auto& closing : closing_connections_) next = std::min(next, closing.connection->Advance(now));
  ReapClosed();
  return next;
}

void UcxNode::OnControl(const ParsedHeader& message, ucp_ep_h reply_to) {
  if (message.type == MessageType::kPong) {
    for (const auto& connector : connectors_) {
      if (connector->OnPong(message.sequence, message.sender)) return;
    }
    counters_->CountDrop();  // late, or never asked for
    return;
  }
  const auto from = accepted_.find(reply_to);
  if (from == accepted_.end()) {
    counters_->CountDrop();
    return;
  }
  from->second->SendControl(EncodeWireHeader(MessageType::kPong, address_.endpoint_id, message.sequence, {}));
}

void UcxNode::AnswerRequests() {
  if (listener_ == nullptr) return;
  for (ucp_conn_request_h request : listener_->TakeRequests()) {
    if (shutting_down() || accepted_.size() >= kMaxAccepted) {
      listener_->Reject(request);
      continue;
    }
    absl::StatusOr<std::unique_ptr<UcxEndpoint>> endpoint = UcxEndpoint::Accept(*worker_, request);
    // The peer may have given up meanwhile: nothing to report.
    if (!endpoint.ok()) continue;
    const ucp_ep_h handle = (*endpoint)->handle();
    accepted_.emplace(handle, *std::move(endpoint));
  }
}

void UcxNode::CloseFailedAndOverdue(absl::Time now) {
  for (ucp_ep_h handle : receiver_->TakeOverdue(now)) {
    const auto entry = accepted_.find(handle);
    if (entry == accepted_.end()) continue;
    DiscardAccepted(std::move(entry->second));
    accepted_.erase(entry);
  }
  for (auto entry = accepted_.begin(); entry != accepted_.end();) {
    if (entry->second->error() == UCS_OK) {
      ++entry;
      continue;
    }
    DiscardAccepted(std::move(entry->second));
    entry = accepted_.erase(entry);
  }
}

absl::Time UcxNode::AdvanceConnectors(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& connector : connectors_) {
    next = std::min(next, connector->Advance(now));
    if (std::unique_ptr<UcxEndpoint> discarded = connector->TakeDiscarded()) Discard(std::move(discarded));
  }
  connectors_.erase(std::remove_if(connectors_.begin(), connectors_.end(),
                                   [](const auto& connector) { return connector->finished(); }),
                    connectors_.end());
  return next;
}

void UcxNode::ReapClosed() {
  for (size_t i = 0; i < closing_connections_.size();) {
    if (!closing_connections_[i].connection->closed()) {
      ++i;
      continue;
    }
    ClosingConnection closed = std::move(closing_connections_[i]);
    closing_connections_.erase(closing_connections_.begin() + i);
    if (std::unique_ptr<UcxEndpoint> endpoint = closed.connection->TakeEndpoint(); !endpoint->closed()) {
      closing_endpoints_.push_back(std::move(endpoint));
    }
    closed.connection.reset();
    closed.done();
  }
  closing_endpoints_.erase(std::remove_if(closing_endpoints_.begin(), closing_endpoints_.end(),
                                          [](const auto& endpoint) { return endpoint->closed(); }),
                           closing_endpoints_.end());
}

void UcxNode::DiscardAccepted(std::unique_ptr<UcxEndpoint> endpoint) {
  closed_copiers_ = closed_copiers_ || Copies(*endpoint);
  Discard(std::move(endpoint));
}

void UcxNode::Discard(std::unique_ptr<UcxEndpoint> endpoint) {
  endpoint->Close();
  closing_endpoints_.push_back(std::move(endpoint));
}

void UcxNode::BeginShutdown(absl::Time now) {
  copy_until_ = now + kCopyLimit;
  receiver_->Refuse();
  for (const auto& connector : connectors_) {
    connector->Abort(absl::CancelledError("connect: the transport was closed"));
  }
  for (auto entry = accepted_.begin(); entry != accepted_.end();) {
    if (Copies(*entry->second)) {
      ++entry;
      continue;
    }
    Discard(std::move(entry->second));
    entry = accepted_.erase(entry);
  }
}

void UcxNode::CloseWhenCopied(absl::Time now) {
  if (receiver_->unfinished() > 0 && now < copy_until_) return;
  for (auto& [handle, endpoint] : accepted_) DiscardAccepted(std::move(endpoint));
  accepted_.clear();
}

bool UcxNode::Copying(absl::Time now) const {
  return shutting_down() && now < copy_until_ && (!accepted_.empty() || (closed_copiers_ && Settled()));
}

bool UcxNode::Settled() const {
  return accepted_.empty() && connectors_.empty() && connections_.empty() && closing_connections_.empty() &&
         closing_endpoints_.empty() && receiver_->unfinished() == 0;
}

}  // namespace aludel
