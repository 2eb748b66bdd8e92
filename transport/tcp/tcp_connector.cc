#include "transport/tcp/tcp_connector.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "transport/socket_address.h"

namespace aludel {

TcpConnector::TcpConnector(Poller* poller, TcpTls* tls, EndpointAddress address, absl::Time deadline,
                           Done done)
    : poller_(poller), tls_(tls), address_(std::move(address)), deadline_(deadline), done_(std::move(done)) {}

absl::Time TcpConnector::Advance(absl::Time now) {
  while (!finished_) {
    if (stream_ == nullptr) {
      if (now >= deadline_ || next_socket_ == address_.sockets.size()) {
        Abort(last_failure_.ok() ? absl::DeadlineExceededError("connect: no time was left to try")
                                 : last_failure_);
        break;
      }
      StartAttempt(now);
      continue;
    }
    if (std::exchange(ready_, false)) {
      const absl::StatusOr<bool> greeted = Greet();
      if (greeted.ok() && *greeted) {
        Finish(std::move(stream_));
        break;
      }
      if (!greeted.ok()) {
        EndAttempt(
            absl::UnavailableError(absl::StrCat("connect to ", attempt_, ": ", greeted.status().message())));
        continue;
      }
      stream_->Await(/*more_to_write=*/false);
    }
    if (now < attempt_deadline_) return attempt_deadline_;
    EndAttempt(absl::DeadlineExceededError(absl::StrCat("connect to ", attempt_, ": no answer in time")));
  }
  return absl::InfiniteFuture();
}

void TcpConnector::StartAttempt(absl::Time now) {
  const size_t sockets_left = address_.sockets.size() - next_socket_;
  attempt_deadline_ = now + (deadline_ - now) / static_cast<int64_t>(sockets_left);
  const SocketAddress target = SocketAddress::FromEntry(address_.sockets[next_socket_++]);
  attempt_ = target.ToString();
  hello_sent_ = welcome_bytes_ = 0;
  ready_ = false;
  absl::StatusOr<std::unique_ptr<TcpStream>> stream = TcpStream::Connect(target, poller_, tls_, this);
  if (!stream.ok()) {
    EndAttempt(
        absl::UnavailableError(absl::StrCat("connect to ", attempt_, ": ", stream.status().message())));
    return;
  }
  stream_ = *std::move(stream);
}

absl::StatusOr<bool> TcpConnector::Greet() {
  const absl::StatusOr<bool> ready = stream_->Ready();
  if (!ready.ok() || !*ready) return ready;
  const TcpHead hello = EncodeTcpHead(TcpFrameType::kHello, address_.endpoint_id, {}, 0);
  while (hello_sent_ < hello.size) {
    const iovec rest = {const_cast<uint8_t*>(hello.bytes.data()) + hello_sent_, hello.size - hello_sent_};
    const absl::StatusOr<size_t> sent = stream_->Write({&rest, 1});
    if (!sent.ok()) return sent.status();
    if (*sent == 0) return false;
    hello_sent_ += *sent;
  }
  while (welcome_bytes_ < welcome_.size()) {
    const absl::StatusOr<size_t> read = stream_->Read(absl::MakeSpan(welcome_).subspan(welcome_bytes_));
    if (!read.ok()) return read.status();
    if (*read == 0) return false;
    welcome_bytes_ += *read;
  }
  const std::optional<TcpPrefix> welcome = ParseTcpPrefix(welcome_);
  if (!welcome || welcome->type != static_cast<uint8_t>(TcpFrameType::kWelcome) ||
      welcome->number != address_.endpoint_id) {
    return absl::UnavailableError("what listens there does not answer as the endpoint that is meant");
  }
  return true;
}

void TcpConnector::EndAttempt(const absl::Status& why) {
  last_failure_ = why;
  stream_.reset();
}

void TcpConnector::Finish(absl::StatusOr<std::unique_ptr<TcpStream>> result) {
  finished_ = true;
  done_(std::move(result));
}

void TcpConnector::Abort(absl::Status status) {
  if (finished_) return;
  stream_.reset();
  Finish(std::move(status));
}

}  // namespace aludel
