#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/stat_counters.h"
#include "transport/transport.h"
#include "transport/transport_options.h"
#include "transport/ucx/ucx_connection.h"
#include "transport/ucx/ucx_connector.h"
#include "transport/ucx/ucx_context.h"
#include "transport/ucx/ucx_listener.h"
#include "transport/ucx/ucx_receiver.h"
#include "transport/ucx/ucx_worker.h"
#include "transport/wire.h"

namespace aludel {

// Everything that one endpoint of the data plane owns and that only the progress thread may touch: the
// worker, the listener, connections in both directions, connects under way. Opened on any thread, run by one,
// destroyed after that one has ended.
class UcxNode {
 public:
  using ConnectDone = absl::AnyInvocable<void(absl::StatusOr<UcxConnection*>)>;
  using CloseDone = absl::AnyInvocable<void()>;

  // Connections that peers may hold to us; more are rejected.
  static constexpr size_t kMaxAccepted = 4096;
  // How long a shutdown lets copies from other processes' memory (cma) run on. UCX 1.13 aborts the process
  // when a worker is destroyed before those have ended that a connection had begun, though it was closed, by
  // whichever side, and its transfers were reported as cancelled. They need nothing of the peer: only a machine
  // that has no time for us makes them take as long.
  static constexpr absl::Duration kCopyLimit = absl::Seconds(20);

  static absl::StatusOr<std::unique_ptr<UcxNode>> Open(const UcxContext& context,
                                                       const TransportOptions& options,
                                                       MessageHandler* handler, StatCounters* counters);
  UcxNode(const UcxNode&) = delete;
  UcxNode& operator=(const UcxNode&) = delete;

  const EndpointAddress& address() const { return address_; }
  UcxWorker& worker() { return *worker_; }

  // `done` gets a connection that lives until CloseConnection has called back.
  void Connect(EndpointAddress peer, absl::Time deadline, ConnectDone done);
  // `done` is called once every send of the connection has completed.
  void CloseConnection(UcxConnection* connection, CloseDone done);

  // Does everything that is due now and does not need UCX to report first; says when it wants to be called
  // next, should nothing happen before.
  absl::Time Advance(absl::Time now);

  // From now on connects fail and messages are dropped; connections are closed, once nothing is being copied.
  void BeginShutdown(absl::Time now);
  // Whether a shutdown still waits for that.
  bool Copying(absl::Time now) const;
  // True after BeginShutdown when nothing is under way any more.
  bool Idle() { return Settled() && (!closed_copiers_ || worker_->Flushed()); }

 private:
  struct ClosingConnection {
    std::unique_ptr<UcxConnection> connection;
    CloseDone done;
  };

  UcxNode(const TransportOptions& options, MessageHandler* handler, StatCounters* counters);
  void OnControl(const ParsedHeader& message, ucp_ep_h reply_to);
  void AnswerRequests();
  void CloseFailedAndOverdue(absl::Time now);
  void CloseWhenCopied(absl::Time now);
  absl::Time AdvanceConnectors(absl::Time now);
  bool shutting_down() const { return copy_until_ != absl::InfiniteFuture(); }
  // Idle as far as requests tell.
  bool Settled() const;
  void ReapClosed();
  void DiscardAccepted(std::unique_ptr<UcxEndpoint> endpoint);
  void Discard(std::unique_ptr<UcxEndpoint> endpoint);

  const LinkEmulation link_;
  uint64_t links_made_ = 0;
  StatCounters* const counters_;
  EndpointAddress address_;
  absl::Time copy_until_ = absl::InfiniteFuture();  // a time once shutting down
  bool closed_copiers_ = false;                     // connections through which we copied

  // Destroyed from the last to the first: the listener, then the worker; then endpoints and sends, into which
  // the worker may call until it is gone, and the receiver, when nothing can write into its handler's memory
  // any more.
  std::unique_ptr<UcxReceiver> receiver_;
  UcxAbandonedSends abandoned_sends_;
  std::unordered_map<ucp_ep_h, std::unique_ptr<UcxEndpoint>> accepted_;
  std::vector<std::unique_ptr<UcxConnector>> connectors_;  // one for each thread that waits in Connect
  std::unordered_map<UcxConnection*, std::unique_ptr<UcxConnection>> connections_;
  std::vector<ClosingConnection> closing_connections_;
  std::vector<std::unique_ptr<UcxEndpoint>> closing_endpoints_;
  std::unique_ptr<UcxWorker> worker_;
  std::unique_ptr<UcxListener> listener_;  // null: connects only
};

}  // namespace aludel
