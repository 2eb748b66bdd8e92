#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "transport/socket_address.h"
#include "transport/ucx/ucx_worker.h"
#include "transport/wire.h"

namespace aludel {

// Owns a ucp_ep_h, either side of one connection, with peer failures reported. Belongs to the progress
// thread. Closing takes time: Close() starts it, progress of the worker ends it, and only then may the object
// and the buffers of its operations go.
class UcxEndpoint {
 public:
  // Starts to connect to a listener. Success shows only when a message gets through, failure in error().
  static absl::StatusOr<std::unique_ptr<UcxEndpoint>> Connect(const UcxWorker& worker,
                                                              const SocketAddress& address);
  // Answers a request that a listener has received, and uses it up.
  static absl::StatusOr<std::unique_ptr<UcxEndpoint>> Accept(const UcxWorker& worker,
                                                             ucp_conn_request_h request);
  // Closed by now, or the worker will make no more progress.
  ~UcxEndpoint() = default;
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  // UCS_OK until the peer, or the way to it, is known to be gone.
  ucs_status_t error() const { return error_; }

  // Cancels all operations without a word to the peer. Safe to call again.
  void Close();
  bool closing() const { return state_ != State::kOpen; }
  bool closed() const { return state_ == State::kClosed && control_in_flight_ == 0; }

  // Sends a ping or pong, without a completion. Dropped when a few are unfinished, so that a peer that asks
  // and does not read cannot fill our memory.
  void SendControl(const WireHeader& wire);

  // Only while not closing().
  ucp_ep_h handle() const { return endpoint_; }

  // Transports and devices in use: "tcp/lo", "posix/memory".
  std::string DescribeLanes() const;

 private:
  enum class State { kOpen, kClosing, kClosed };
  struct ControlMessage;

  UcxEndpoint() = default;
  absl::Status Create(const UcxWorker& worker, ucp_ep_params_t& params);
  static void OnError(void* self, ucp_ep_h endpoint, ucs_status_t status);
  static void OnClosed(void* request, ucs_status_t status, void* self);
  static void OnControlSent(void* request, ucs_status_t status, void* message);

  ucp_ep_h endpoint_ = nullptr;
  State state_ = State::kOpen;
  ucs_status_t error_ = UCS_OK;
  int control_in_flight_ = 0;
};

// The lanes in the text that ucp_ep_print_info writes, each once, in its order, separated by spaces;
// "unknown" when none is recognized.
std::string ParseLanes(absl::string_view info);

}  // namespace aludel
