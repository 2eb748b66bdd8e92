#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "transport/transport.h"

namespace aludel {

// A transport channel that can be closed while others hold it. Thread-safe.
class PeerConnection {
 public:
  explicit PeerConnection(std::unique_ptr<Channel> channel) : channel_(std::move(channel)) {}

  // As Channel::Send; Cancelled after Close.
  void Send(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload,
            std::function<void(absl::Status)> done);
  bool healthy() const;
  // Grows while the peer takes what is sent: by sends that have ended, and by bytes where the transport can tell.
  uint64_t progress() const;
  // Who holds this wants what it sends to arrive. It may outlive the connection.
  std::shared_ptr<const void> Use() const { return uses_; }
  bool used() const { return uses_.use_count() > 1; }
  // Ends every unfinished send with Cancelled before it returns. Not from the transport's progress thread
  // (so not from a `done`).
  void Close();

 private:
  const std::shared_ptr<const void> uses_ = std::make_shared<int>();
  std::atomic<uint64_t> ended_{0};
  mutable absl::Mutex mutex_;
  std::unique_ptr<Channel> channel_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
