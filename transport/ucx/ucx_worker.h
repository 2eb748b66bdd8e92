#pragma once

#include <ucp/api/ucp.h>

#include <memory>

#include "absl/status/statusor.h"
#include "transport/ucx/ucx_context.h"

namespace aludel {

// The active message id of all our traffic.
inline constexpr unsigned kActiveMessageId = 1;

// Owns a ucp_worker_h. Made on the opening thread, then used and destroyed by the progress thread alone.
// Outlives every endpoint and the listener.
class UcxWorker {
 public:
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Open(const UcxContext& context);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // `arg` must live as long as the worker makes progress.
  absl::Status ReceiveWith(ucp_am_recv_callback_t callback, void* arg);

  // True when something happened, so that more may be waiting.
  bool Progress() { return ucp_worker_progress(worker_) != 0; }

  // True when event_fd() will become readable at the next event; false when there are events to progress now.
  bool Arm() { return ucp_worker_arm(worker_) == UCS_OK; }
  int event_fd() const { return event_fd_; }

  // Whether everything has ended that connections closed so far had begun. A call that says no keeps track of
  // it until another, after some progress, says yes.
  bool Flushed();

  ucp_worker_h handle() const { return worker_; }

 private:
  UcxWorker(ucp_worker_h worker, int event_fd) : worker_(worker), event_fd_(event_fd) {}

  const ucp_worker_h worker_;
  const int event_fd_;     // belongs to the worker
  void* flush_ = nullptr;  // UCX's request while one is under way
};

}  // namespace aludel
