#include "server/prefill/peer_connection.h"

namespace aludel {

void PeerConnection::Send(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload,
                          std::function<void(absl::Status)> done) {
  {
    // Many may send at once; the lock only keeps Close away.
    absl::ReaderMutexLock lock(&mutex_);
    if (channel_ != nullptr) {
      channel_->Send(header, payload, std::move(done));
      return;
    }
  }
  done(absl::CancelledError("the connection was closed"));
}

bool PeerConnection::healthy() const {
  absl::ReaderMutexLock lock(&mutex_);
  return channel_ != nullptr && channel_->healthy();
}

void PeerConnection::Close() {
  std::unique_ptr<Channel> channel;
  {
    absl::MutexLock lock(&mutex_);
    channel = std::move(channel_);
  }
}

}  // namespace aludel
