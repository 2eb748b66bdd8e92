#include "transport/tcp/tcp_inbound.h"

#include <algorithm>
#include <utility>

#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// What one connection may bring before others have their turn.
constexpr size_t kReadBytes = 4 << 20;
// Bytes a second at which a payload may come for as long as it takes (TransportOptions::receive_timeout).
constexpr double kLeastRate = 125'000;

}  // namespace

absl::StatusOr<std::unique_ptr<TcpInbound>> TcpInbound::Accept(int socket, Poller* poller, TcpTls* tls,
                                                               TcpInbox* inbox, const Limits& limits,
                                                               absl::Time now) {
  auto inbound = std::unique_ptr<TcpInbound>(new TcpInbound(inbox, limits));
  inbound->deadline_ = now + limits.hello;
  absl::StatusOr<std::unique_ptr<TcpStream>> stream = TcpStream::Accept(socket, poller, tls, inbound.get());
  if (!stream.ok()) return stream.status();
  inbound->stream_ = *std::move(stream);
  return inbound;
}

void TcpInbound::OnReady() {
  if (ended()) return;
  if (absl::Status status = Read(); !status.ok()) End(status);
}

absl::Status TcpInbound::Read() {
  hungry_ = false;
  const absl::StatusOr<bool> ready = stream_->Ready();
  if (!ready.ok()) return ready.status();
  for (size_t total = 0; *ready;) {
    const absl::StatusOr<size_t> read = stream_->Read(parser_.Room());
    if (!read.ok()) return read.status();
    if (*read == 0) break;
    if (absl::Status status = parser_.Received(*read); !status.ok()) {
      inbox_->counters->CountDrop();
      return status;
    }
    if (parser_.greeted() && !welcomed_) {
      if (absl::Status status = Welcome(); !status.ok()) return status;
    }
    SetDeadline();
    total += *read;
    if (total >= kReadBytes) {
      hungry_ = stream_->has_buffered();
      break;
    }
  }
  stream_->Await(/*more_to_write=*/false);
  return absl::OkStatus();
}

void TcpInbound::SetDeadline() {
  if (parser_.under_way() == 0) {
    timed_ = 0;
    deadline_ = absl::InfiniteFuture();
    return;
  }
  const absl::Time now = MonotonicNow();
  if (parser_.under_way() != timed_) {
    timed_ = parser_.under_way();
    timed_from_ = now;
    timed_bytes_ = parser_.payload_left();
  }
  const auto come = static_cast<double>(timed_bytes_ - parser_.payload_left());
  // One that came fast and stops has no more time for that.
  deadline_ = std::min(timed_from_ + absl::Seconds(come / kLeastRate), now) + limits_.receive;
}

absl::Status TcpInbound::Welcome() {
  welcomed_ = true;
  deadline_ = absl::InfiniteFuture();
  const TcpHead welcome = EncodeTcpHead(TcpFrameType::kWelcome, inbox_->endpoint_id, {}, 0);
  const iovec piece = {const_cast<uint8_t*>(welcome.bytes.data()), welcome.size};
  const absl::StatusOr<size_t> sent = stream_->Write({&piece, 1});
  if (!sent.ok()) return sent.status();
  // The first bytes into an empty socket: there is always room for them.
  return *sent == welcome.size ? absl::OkStatus() : absl::UnavailableError("the welcome cannot be sent");
}

void TcpInbound::End(const absl::Status& reason) {
  if (ended()) return;
  stream_.reset();
  deadline_ = absl::InfiniteFuture();
  parser_.End(reason);
}

}  // namespace aludel
