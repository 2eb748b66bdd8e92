#pragma once

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/stat_counters.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/tcp_connector.h"
#include "transport/tcp/tcp_inbound.h"
#include "transport/tcp/tcp_listener.h"
#include "transport/tcp/tcp_sender.h"
#include "transport/tcp/tcp_tls.h"
#include "transport/transport.h"
#include "transport/transport_options.h"
#include "transport/wire.h"

namespace aludel {

// Everything that one endpoint of the data plane owns and that only the progress thread may touch: the
// listener, connections in both directions, connects under way. Opened on any thread, run by one, destroyed
// by that one.
class TcpNode {
 public:
  using ConnectDone = absl::AnyInvocable<void(absl::StatusOr<TcpSender*>)>;

  // Connections whose hello has come; more are closed.
  static constexpr size_t kMaxAccepted = 4096;
  // Connections whose hello has not come: the oldest is ended for the next, so that silent connections do not
  // keep out those that speak.
  static constexpr size_t kMaxStrangers = 128;
  static constexpr absl::Duration kHelloLimit = absl::Seconds(5);

  static absl::StatusOr<std::unique_ptr<TcpNode>> Open(const TransportOptions& options,
                                                       MessageHandler* handler, StatCounters* counters);
  ~TcpNode();
  TcpNode(const TcpNode&) = delete;
  TcpNode& operator=(const TcpNode&) = delete;

  const EndpointAddress& address() const { return address_; }
  Poller& poller() { return *poller_; }

  // `done` gets a sender that lives until CloseSender.
  void Connect(EndpointAddress peer, absl::Time deadline, ConnectDone done);
  // Every send of it has completed when this returns.
  void CloseSender(TcpSender* sender);

  // Does everything that is due now, or was made possible by the last Wait; says when it wants to be called
  // next, should nothing happen before.
  absl::Time Advance(absl::Time now);

  // Ends connects with Cancelled and connections from peers.
  void Shutdown();

 private:
  TcpNode(const TransportOptions& options, MessageHandler* handler, StatCounters* counters);
  void OnSocket(int socket);
  absl::Time AdvanceConnectors(absl::Time now);
  absl::Time AdvanceInbound(absl::Time now);

  const LinkEmulation link_;
  const TcpInbound::Limits limits_;
  StatCounters* const counters_;
  EndpointAddress address_;
  TcpInbox inbox_;
  uint64_t links_made_ = 0;

  // Destroyed from the last to the first.
  std::unique_ptr<Poller> poller_;
  std::unique_ptr<TcpTls> tls_;                            // null: plain TCP
  std::unique_ptr<TcpListener> listener_;                  // null: connects only
  std::vector<std::unique_ptr<TcpConnector>> connectors_;  // one for each thread that waits in Connect
  std::unordered_map<TcpSender*, std::unique_ptr<TcpSender>> senders_;
  std::list<std::unique_ptr<TcpInbound>> strangers_;  // the oldest first
  std::list<std::unique_ptr<TcpInbound>> accepted_;
};

}  // namespace aludel
