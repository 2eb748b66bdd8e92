#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/link_emulator.h"
#include "transport/stat_counters.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {

// One message on its way through a LoopbackLink.
struct LoopbackMessage {
  std::vector<uint8_t> header;
  absl::Span<const uint8_t> payload;
  std::function<void(absl::Status)> done;
  LinkFate fate;
};

// The messages between one channel and the node that it leads to. Guarded by the mutex of that node.
struct LoopbackLink {
  LoopbackLink(const LinkEmulation& link, int max_unfinished, StatCounters* sender)
      : emulator(link, /*stream=*/0), max_unfinished(max_unfinished), sender_counters(sender) {}

  LinkEmulator emulator;
  const int max_unfinished;
  StatCounters* const sender_counters;
  std::deque<LoopbackMessage> queue;
  int unfinished = 0;
  bool delivering = false;  // its first message has left the queue and is being copied
};

// The receiving half of a loopback transport: delivers what its links carry, on a thread of its own. Shared
// by the transport and the channels that lead to it; after Shutdown it delivers nothing and
// refuses everything.
class LoopbackNode {
 public:
  LoopbackNode(MessageHandler* handler, StatCounters* counters);
  ~LoopbackNode();
  LoopbackNode(const LoopbackNode&) = delete;
  LoopbackNode& operator=(const LoopbackNode&) = delete;

  // Unavailable after Shutdown.
  absl::Status AddLink(LoopbackLink* link) ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancels what is unfinished and waits for a delivery that is under way. Not from a callback.
  void RemoveLink(LoopbackLink* link) ABSL_LOCKS_EXCLUDED(mutex_);

  void Send(LoopbackLink* link, LoopbackMessage message) ABSL_LOCKS_EXCLUDED(mutex_);
  bool open() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the thread; queued messages fail with Unavailable. The handler is not called afterwards.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void FailQueuedSends() ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // The link whose next message is due first, or null when all are empty.
  LoopbackLink* NextLink() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Deliver(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload);

  MessageHandler* const handler_;
  StatCounters* const counters_;
  MessageId next_id_ = 1;  // delivering thread only

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<LoopbackLink*> links_ ABSL_GUARDED_BY(mutex_);
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  std::thread thread_;
};

}  // namespace aludel
