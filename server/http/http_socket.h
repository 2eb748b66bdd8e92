#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "openssl/ossl_typ.h"

namespace aludel {

// Either side of a connection, plain or under TLS, as calls that never block: each does what it can and says
// what it waits for. Waiting is for readiness of the descriptor, without a buffer, so that an idle connection
// stays small; under TLS a read may have to wait for room to write, and the other way round. Belongs to one
// loop's thread, in a process that ignores SIGPIPE (OpenSSL writes to closed sockets).
class HttpSocket {
 public:
  enum class Io {
    kDone,
    kWaitRead,
    kWaitWrite,
    kClosed,  // by the peer, or broken
  };

  // `tls` null: plain. The peer is the server `server`, a name or an address that its certificate is for
  // where `tls` verifies; "": the peer is a client.
  HttpSocket(boost::asio::ip::tcp::socket socket, const std::shared_ptr<SSL_CTX>& tls,
             const std::string& server = "");

  // The first thing to do, until it is kDone; at once where there is no TLS.
  Io Handshake();
  // At least one byte where kDone. What `capacity` leaves of a TLS record stays here, where no readiness of the
  // descriptor tells of it: see buffered().
  Io Read(char* data, size_t capacity, size_t* size);
  // At least one byte where kDone.
  Io Write(const char* data, size_t size, size_t* written);
  // Whether Read has bytes without the descriptor. Ask before waiting to read.
  bool buffered() const;
  // Nothing more will be written. Reading goes on.
  void ShutdownSend();
  void Close();

  // After kClosed: why; "" where the peer ended the connection in order.
  const std::string& reason() const { return reason_; }
  // "address:port"; "" when the peer is gone already.
  std::string Peer() const;

  // `handler(error_code)` once the descriptor is ready for what `io` (kWaitRead or kWaitWrite) wants.
  template <typename Handler>
  void Wait(Io io, Handler handler) {
    socket_.async_wait(io == Io::kWaitWrite ? boost::asio::ip::tcp::socket::wait_write
                                            : boost::asio::ip::tcp::socket::wait_read,
                       std::move(handler));
  }

 private:
  Io FromTls(int result);
  Io FromPlain(const boost::system::error_code& ec, Io wait);

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<SSL, void (*)(SSL*)> tls_;
  bool broken_ = false;  // after a fatal TLS error nothing more may be sent
  std::string reason_;
};

}  // namespace aludel
