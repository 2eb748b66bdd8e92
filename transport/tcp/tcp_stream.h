#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/socket_address.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/tcp_tls.h"

namespace aludel {

// A connected socket, with TLS where there is a TcpTls. Nothing blocks: a call that has to wait does nothing,
// and the poller tells the owner when it is worth another try. Every error is the end of the stream. Belongs
// to the progress thread.
class TcpStream {
 public:
  // Begins to connect; Ready says when that is done.
  static absl::StatusOr<std::unique_ptr<TcpStream>> Connect(const SocketAddress& address, Poller* poller,
                                                            TcpTls* tls, Polled* owner);
  // Takes over an accepted socket.
  static absl::StatusOr<std::unique_ptr<TcpStream>> Accept(int socket, Poller* poller, TcpTls* tls,
                                                           Polled* owner);
  ~TcpStream();
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  // Connected, and the handshake done with a peer that is allowed; false while that takes time.
  absl::StatusOr<bool> Ready();
  // How many bytes were read or written; 0 where that would block. An end of the peer's is Unavailable.
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> target);
  absl::StatusOr<size_t> Write(absl::Span<const iovec> pieces);
  // Bytes have been received that Read has not delivered and the poller will not tell of.
  bool has_buffered() const { return ssl_ != nullptr && SSL_has_pending(ssl_.get()) == 1; }

  // To be called when all that can be done now was done: has the poller tell the owner of what comes, and of
  // room to write where `more_to_write`, or where TLS needs it.
  void Await(bool more_to_write);
  void set_owner(Polled* owner) { owner_ = owner; }

  std::string lanes() const;  // "tcp", "tcp tls1.3", "tcp tls1.3 ktls"

 private:
  TcpStream(int socket, Poller* poller, Polled* owner) : socket_(socket), poller_(poller), owner_(owner) {}
  absl::Status Begin(TcpTls* tls, bool accepting);
  // What a call of OpenSSL that returned `result` <= 0 means: Ok where it wants to be repeated.
  absl::Status FromSsl(int result, const char* what);
  absl::StatusOr<size_t> WriteTls(absl::Span<const iovec> pieces);

  const int socket_;
  Poller* const poller_;
  Polled* owner_;
  TcpTls* tls_ = nullptr;
  SslSession ssl_;
  bool connected_ = false;
  bool handshaken_ = false;
  bool blocked_on_write_ = false;
  // What the poller was told last.
  const Polled* watched_by_ = nullptr;
  bool watched_writable_ = false;
};

}  // namespace aludel
