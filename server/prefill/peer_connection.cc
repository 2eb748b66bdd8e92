#include "server/prefill/peer_connection.h"

namespace aludel {

void PeerConnection::Send(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload,
                          std::function<void(absl::Status)> done) {
  {
    // Many may send at once; the lock only keeps Close away.
    absl::ReaderMutexLock lock(&mutex_);
    if (channel_ != nullptr) {
      // The channel ends every send before it goes, and goes with this.
      channel_->Send(header, payload, [this, done = std::move(done)](const absl::Status& status) {
        ++ended_;
        done(status);
      });
      return;
    }
  }
  done(absl::CancelledError("the connection was closed"));
}

bool PeerConnection::healthy() const {
  absl::ReaderMutexLock lock(&mutex_);
  return channel_ != nullptr && channel_->healthy();
}

uint64_t PeerConnection::progress() const {
  absl::ReaderMutexLock lock(&mutex_);
  return ended_ + (channel_ == nullptr ? 0 : channel_->written());
}

void PeerConnection::Close() {
  std::unique_ptr<Channel> channel;
  {
    absl::MutexLock lock(&mutex_);
    channel = std::move(channel_);
  }
}

}  // namespace aludel
