#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/socket_address.h"
#include "transport/ucx/ucx_worker.h"

namespace aludel {

// Owns a ucp_listener_h and the unanswered connection requests. Made on the opening thread, then used and
// destroyed by the progress thread, before the worker.
class UcxListener {
 public:
  // Binds a free port.
  static absl::StatusOr<std::unique_ptr<UcxListener>> Open(const UcxWorker& worker,
                                                           const SocketAddress& address);
  ~UcxListener();
  UcxListener(const UcxListener&) = delete;
  UcxListener& operator=(const UcxListener&) = delete;

  uint16_t port() const { return port_; }

  // The requests since the last call. Each must be accepted (UcxEndpoint::Accept) or rejected.
  std::vector<ucp_conn_request_h> TakeRequests() { return std::exchange(requests_, {}); }
  void Reject(ucp_conn_request_h request) { ucp_listener_reject(listener_, request); }

 private:
  UcxListener() = default;
  static void OnRequest(ucp_conn_request_h request, void* self);

  ucp_listener_h listener_ = nullptr;
  uint16_t port_ = 0;
  std::vector<ucp_conn_request_h> requests_;  // at most as many as arrive in one round of progress
};

}  // namespace aludel
