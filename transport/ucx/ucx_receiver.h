#pragma once

#include <ucp/api/ucp.h>

#include <functional>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "transport/stat_counters.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_worker.h"
#include "transport/wire.h"

namespace aludel {

// The receiving side: checks what arrives, asks the handler where data shall go, and pulls it there. Belongs
// to the progress thread. Destroyed after the worker has stopped; transfers that are unfinished then are
// reported as cancelled.
class UcxReceiver {
 public:
  // Called for pings and pongs; `reply_to` may be null.
  using ControlHandler = std::function<void(const ParsedHeader& message, ucp_ep_h reply_to)>;

  UcxReceiver(MessageHandler* handler, StatCounters* counters, absl::Duration timeout,
              ControlHandler on_control);
  ~UcxReceiver();
  UcxReceiver(const UcxReceiver&) = delete;
  UcxReceiver& operator=(const UcxReceiver&) = delete;

  absl::Status AttachTo(UcxWorker* worker);

  // From now on messages are dropped; transfers under way go on.
  void Refuse() { refusing_ = true; }

  // The connections of transfers that have exceeded the timeout, each transfer reported once. The owner
  // closes those connections, which ends the transfers. A transfer that waits behind others of its connection
  // is not overdue while these end well.
  std::vector<ucp_ep_h> TakeOverdue(absl::Time now);
  // When TakeOverdue may next have something to say.
  absl::Time next_deadline() const;

  size_t unfinished() const { return transfers_.size(); }

 private:
  struct Transfer {
    UcxReceiver* receiver;
    MessageId id;
    size_t bytes;
    ucp_ep_h from;
  };
  struct Sender {
    int transfers = 0;    // unfinished
    absl::Time progress;  // when the first of them began, or the last one ended
  };

  static ucs_status_t OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                size_t payload_bytes, const ucp_am_recv_param_t* params);
  static void OnReceived(void* request, ucs_status_t status, size_t bytes, void* transfer);
  void OnData(absl::Span<const uint8_t> header, void* data, size_t payload_bytes,
              const ucp_am_recv_param_t& params);
  void Pull(MessageId id, absl::Span<uint8_t> target, void* descriptor, const ucp_am_recv_param_t& params);
  void Forget(MessageId id, const absl::Status& status);
  void Finish(MessageId id, size_t bytes, const absl::Status& status);

  MessageHandler* const handler_;
  StatCounters* const counters_;
  const absl::Duration timeout_;
  const ControlHandler on_control_;
  UcxWorker* worker_ = nullptr;
  bool refusing_ = false;
  MessageId next_id_ = 1;
  std::unordered_map<MessageId, std::unique_ptr<Transfer>> transfers_;  // bounded by what the handler accepts
  std::set<std::pair<absl::Time, MessageId>>
      deadlines_;                                 // those of finished transfers go when they come first
  std::unordered_map<ucp_ep_h, Sender> senders_;  // of unfinished transfers
};

}  // namespace aludel
