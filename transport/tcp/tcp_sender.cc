#include "transport/tcp/tcp_sender.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// What one connection may write before others have their turn.
constexpr size_t kFlushBytes = 4 << 20;
constexpr size_t kPieces = 16;

size_t WireBytes(const TcpSend& send) { return send.head.size + send.payload.size(); }

}  // namespace

TcpSender::TcpSender(std::unique_ptr<TcpStream> stream, const LinkEmulator& link, StatCounters* counters)
    : stream_(std::move(stream)), lanes_(stream_->lanes()), counters_(counters), link_(link) {
  stream_->set_owner(this);
  stream_->Await(/*more_to_write=*/false);
}

void TcpSender::Queue(TcpSend send) {
  if (stream_ == nullptr) return Finish(send, failure_);
  QueueOverLink(&link_, MonotonicNow(), std::move(send), counters_, &state_->unfinished, &queue_);
}

absl::Time TcpSender::Advance(absl::Time now) {
  const bool idle = writing_.empty();
  while (!queue_.empty() && queue_.front().due <= now) {
    TcpSend send = std::move(queue_.front());
    queue_.pop_front();
    if (send.lost) {
      Finish(send, absl::OkStatus());
      continue;
    }
    SetNumber(send.head, next_number_++);
    writing_.push_back(std::move(send));
  }
  // Where something is being written already, the poller says when it goes on.
  if (idle && !writing_.empty()) Flush();
  return queue_.empty() ? absl::InfiniteFuture() : queue_.front().due;
}

void TcpSender::OnReady() {
  if (stream_ == nullptr) return;
  std::array<uint8_t, 64> unexpected;
  const absl::StatusOr<size_t> read = stream_->Read(absl::MakeSpan(unexpected));
  if (!read.ok()) return Fail(read.status());
  if (*read > 0) return Fail(absl::UnavailableError("the receiver sends where it should only receive"));
  Flush();
}

void TcpSender::Flush() {
  size_t flushed = 0;
  while (!writing_.empty() && flushed < kFlushBytes) {
    std::array<iovec, kPieces> pieces;
    size_t count = 0;
    size_t skip = written_;
    for (auto send = writing_.begin(); send != writing_.end() && count + 2 <= kPieces; ++send) {
      for (const absl::Span<const uint8_t> part :
           {absl::MakeConstSpan(send->head.bytes).first(send->head.size), send->payload}) {
        const size_t skipped = std::min(skip, part.size());
        skip -= skipped;
        if (part.size() > skipped) {
          pieces[count++] = {const_cast<uint8_t*>(part.data()) + skipped, part.size() - skipped};
        }
      }
    }
    const absl::StatusOr<size_t> written = stream_->Write(absl::MakeConstSpan(pieces).first(count));
    if (!written.ok()) return Fail(written.status());
    if (*written == 0) break;
    flushed += *written;
    Written(*written);
  }
  stream_->Await(/*more_to_write=*/!writing_.empty());
}

void TcpSender::Written(size_t bytes) {
  written_ += bytes;
  state_->written.fetch_add(bytes, std::memory_order_relaxed);
  while (!writing_.empty() && written_ >= WireBytes(writing_.front())) {
    const TcpSend send = std::move(writing_.front());
    writing_.pop_front();
    written_ -= WireBytes(send);
    Finish(send, absl::OkStatus());
  }
}

void TcpSender::Finish(const TcpSend& send, const absl::Status& outcome) {
  counters_->CountSend(outcome, send.payload.size());
  state_->unfinished.fetch_sub(1, std::memory_order_relaxed);  // first: `done` may send the next message
  send.done(outcome);
}

void TcpSender::Fail(const absl::Status& why) {
  state_->healthy = false;  // before `done`, which may look
  failure_ = absl::UnavailableError(absl::StrCat("send: the peer is gone: ", why.message()));
  stream_.reset();
  FinishAll(failure_);
}

void TcpSender::Close() {
  stream_.reset();
  failure_ = absl::CancelledError("send: the channel was closed");
  FinishAll(failure_);
}

void TcpSender::FinishAll(const absl::Status& outcome) {
  for (std::deque<TcpSend>* sends : {&writing_, &queue_}) {
    for (const TcpSend& send : std::exchange(*sends, {})) Finish(send, outcome);
  }
}

}  // namespace aludel
