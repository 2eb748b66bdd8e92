#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "openssl/ossl_typ.h"

namespace aludel {

// A client's connection, plain or under TLS, as calls that never block: each does what it can and says what
// it waits for. Waiting is for readiness of the descriptor, without a buffer, so that an idle connection
// stays small; under TLS a read may have to wait for room to write, and the other way round. Belongs to one
// loop's thread.
class HttpSocket {
 public:
  enum class Io {
    kDone,
    kWaitRead,
    kWaitWrite,
    kClosed,  // by the peer, or broken
  };

  // `tls` null: plain.
  HttpSocket(boost::asio::ip::tcp::socket socket, const std::shared_ptr<SSL_CTX>& tls);

  // The first thing to do, until it is kDone; at once where there is no TLS.
  Io Handshake();
  // At least one byte where kDone.
  Io Read(char* data, size_t capacity, size_t* size);
  // At least one byte where kDone.
  Io Write(const char* data, size_t size, size_t* written);
  // Nothing more will be written. Reading goes on.
  void ShutdownSend();
  void Close();

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

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<SSL, void (*)(SSL*)> tls_;
  bool broken_ = false;  // after a fatal TLS error nothing more may be sent
};

}  // namespace aludel
