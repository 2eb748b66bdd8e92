#include "transport/tcp/tcp_stream.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

// A machine that has vanished, or a peer that takes nothing for so long, is gone: without this its connection
// would keep a place for ever.
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepIntervalSeconds = 5;
constexpr int kKeepProbes = 4;
constexpr unsigned kUserTimeoutMs = 30000;

void SetOptions(int socket) {
  const auto set = [socket](int level, int name, auto value) {
    setsockopt(socket, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

absl::Status FromErrno(const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

absl::StatusOr<std::unique_ptr<TcpStream>> TcpStream::Connect(const SocketAddress& address, Poller* poller,
                                                              TcpTls* tls, Polled* owner) {
  const int fd = socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return FromErrno("socket", errno);
  auto stream = std::unique_ptr<TcpStream>(new TcpStream(fd, poller, owner));
  if (connect(fd, address.get(), address.size()) != 0 && errno != EINPROGRESS)
    return FromErrno("connect", errno);
  if (absl::Status status = stream->Begin(tls, /*accepting=*/false); !status.ok()) return status;
  stream->blocked_on_write_ = true;  // until it is connected
  stream->Await(false);
  return stream;
}

absl::StatusOr<std::unique_ptr<TcpStream>> TcpStream::Accept(int socket, Poller* poller, TcpTls* tls,
                                                             Polled* owner) {
  auto stream = std::unique_ptr<TcpStream>(new TcpStream(socket, poller, owner));
  if (absl::Status status = stream->Begin(tls, /*accepting=*/true); !status.ok()) return status;
  stream->connected_ = true;
  stream->Await(false);
  return stream;
}

absl::Status TcpStream::Begin(TcpTls* tls, bool accepting) {
  SetOptions(socket_);
  tls_ = tls;
  if (tls == nullptr) return absl::OkStatus();
  absl::StatusOr<SslSession> session = tls->NewSession(socket_, accepting);
  if (!session.ok()) return session.status();
  ssl_ = *std::move(session);
  return absl::OkStatus();
}

TcpStream::~TcpStream() {
  ssl_.reset();
  if (watched_by_ != nullptr) poller_->Forget(socket_);
  close(socket_);
}

absl::StatusOr<bool> TcpStream::Ready() {
  if (!connected_) {
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return FromErrno("connect", error);
    sockaddr_storage peer;
    size = sizeof(peer);
    if (getpeername(socket_, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
    connected_ = true;
    blocked_on_write_ = false;
  }
  if (ssl_ == nullptr || handshaken_) return true;
  ERR_clear_error();
  errno = 0;
  blocked_on_write_ = false;
  if (const int result = SSL_do_handshake(ssl_.get()); result != 1) {
    if (absl::Status status = FromSsl(result, "TLS handshake"); !status.ok()) return status;
    return false;
  }
  if (absl::Status status = tls_->CheckPeer(ssl_.get()); !status.ok()) return status;
  handshaken_ = true;
  return true;
}

absl::Status TcpStream::FromSsl(int result, const char* what) {
  const int system_error = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return absl::OkStatus();
    case SSL_ERROR_WANT_WRITE:
      blocked_on_write_ = true;
      return absl::OkStatus();
    case SSL_ERROR_ZERO_RETURN:
      return absl::UnavailableError(absl::StrCat(what, ": the peer has closed the connection"));
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return system_error == 0
                 ? absl::UnavailableError(absl::StrCat(what, ": the peer has closed the connection"))
                 : FromErrno(what, system_error);
    default:
      return absl::UnavailableError(absl::StrCat(what, ": ", TakeSslError()));
  }
}

absl::StatusOr<size_t> TcpStream::Read(absl::Span<uint8_t> target) {
  if (ssl_ != nullptr) {
    ERR_clear_error();
    errno = 0;
    blocked_on_write_ = false;  // a write that was, is tried again by its owner
    size_t bytes = 0;
    if (const int result = SSL_read_ex(ssl_.get(), target.data(), target.size(), &bytes); result != 1) {
      if (absl::Status status = FromSsl(result, "read"); !status.ok()) return status;
      return 0;
    }
    return bytes;
  }
  const ssize_t bytes = recv(socket_, target.data(), target.size(), 0);
  if (bytes > 0) return static_cast<size_t>(bytes);
  if (bytes == 0) return absl::UnavailableError("read: the peer has closed the connection");
  if (WouldBlock(errno)) return 0;
  return FromErrno("read", errno);
}

absl::StatusOr<size_t> TcpStream::Write(absl::Span<const iovec> pieces) {
  if (ssl_ != nullptr) return WriteTls(pieces);
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  const ssize_t bytes = sendmsg(socket_, &message, MSG_NOSIGNAL);
  blocked_on_write_ = bytes < 0 && WouldBlock(errno);
  if (blocked_on_write_) return 0;
  if (bytes < 0) return FromErrno("write", errno);
  return static_cast<size_t>(bytes);
}

absl::StatusOr<size_t> TcpStream::WriteTls(absl::Span<const iovec> pieces) {
  // Small pieces share a record. A write that was blocked is repeated with the same bytes at its beginning
  // (nothing leaves the front of the queue meanwhile), which is what OpenSSL asks for.
  std::array<uint8_t, SSL3_RT_MAX_PLAIN_LENGTH> record;
  const void* data = pieces[0].iov_base;
  size_t size = pieces[0].iov_len;
  if (size < record.size() && pieces.size() > 1) {
    size = 0;
    for (const iovec& piece : pieces) {
      const size_t take = std::min(piece.iov_len, record.size() - size);
      std::memcpy(record.data() + size, piece.iov_base, take);
      size += take;
    }
    data = record.data();
  }
  ERR_clear_error();
  errno = 0;
  size_t bytes = 0;
  blocked_on_write_ = false;
  if (const int result = SSL_write_ex(ssl_.get(), data, size, &bytes); result != 1) {
    if (absl::Status status = FromSsl(result, "write"); !status.ok()) return status;
    return 0;
  }
  return bytes;
}

void TcpStream::Await(bool more_to_write) {
  const bool writable = more_to_write || blocked_on_write_;
  if (watched_by_ == owner_ && watched_writable_ == writable) return;
  poller_->Watch(socket_, owner_, writable);
  watched_by_ = owner_;
  watched_writable_ = writable;
}

std::string TcpStream::lanes() const {
  if (ssl_ == nullptr) return "tcp";
  return BIO_get_ktls_send(SSL_get_wbio(ssl_.get())) ? "tcp tls1.3 ktls" : "tcp tls1.3";
}

}  // namespace aludel
