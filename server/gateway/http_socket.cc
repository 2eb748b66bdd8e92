#include "server/gateway/http_socket.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

bool WouldBlock(const error_code& ec) {
  return ec == asio::error::would_block || ec == asio::error::try_again || ec == asio::error::interrupted;
}

}  // namespace

HttpSocket::HttpSocket(tcp::socket socket, const std::shared_ptr<SSL_CTX>& tls)
    : socket_(std::move(socket)), tls_(nullptr, SSL_free) {
  error_code ec;
  socket_.non_blocking(true, ec);
  socket_.set_option(tcp::no_delay(true), ec);
  if (tls == nullptr) return;
  tls_.reset(SSL_new(tls.get()));  // keeps the context alive
  broken_ = tls_ == nullptr || SSL_set_fd(tls_.get(), static_cast<int>(socket_.native_handle())) != 1;
  if (!broken_) SSL_set_accept_state(tls_.get());
}

HttpSocket::Io HttpSocket::FromTls(int result) {
  const int error = SSL_get_error(tls_.get(), result);
  ERR_clear_error();
  switch (error) {
    case SSL_ERROR_WANT_READ:
      return Io::kWaitRead;
    case SSL_ERROR_WANT_WRITE:
      return Io::kWaitWrite;
    default:
      broken_ = true;
      return Io::kClosed;
  }
}

HttpSocket::Io HttpSocket::Handshake() {
  if (broken_) return Io::kClosed;
  if (tls_ == nullptr) return Io::kDone;
  const int result = SSL_do_handshake(tls_.get());
  return result == 1 ? Io::kDone : FromTls(result);
}

HttpSocket::Io HttpSocket::Read(char* data, size_t capacity, size_t* size) {
  if (broken_) return Io::kClosed;
  if (tls_ != nullptr) {
    const int result = SSL_read_ex(tls_.get(), data, capacity, size);
    return result == 1 ? Io::kDone : FromTls(result);
  }
  error_code ec;
  *size = socket_.read_some(asio::buffer(data, capacity), ec);
  if (WouldBlock(ec)) return Io::kWaitRead;
  return ec ? Io::kClosed : Io::kDone;
}

HttpSocket::Io HttpSocket::Write(const char* data, size_t size, size_t* written) {
  if (broken_) return Io::kClosed;
  if (tls_ != nullptr) {
    const int result = SSL_write_ex(tls_.get(), data, size, written);
    return result == 1 ? Io::kDone : FromTls(result);
  }
  error_code ec;
  *written = socket_.write_some(asio::buffer(data, size), ec);
  if (WouldBlock(ec)) return Io::kWaitWrite;
  return ec ? Io::kClosed : Io::kDone;
}

void HttpSocket::ShutdownSend() {
  if (tls_ != nullptr && !broken_ && SSL_is_init_finished(tls_.get())) {
    // One attempt: a peer that leaves no room for the alert learns of the end from TCP.
    SSL_shutdown(tls_.get());
    ERR_clear_error();
  }
  error_code ec;
  socket_.shutdown(tcp::socket::shutdown_send, ec);
}

void HttpSocket::Close() {
  error_code ec;
  socket_.close(ec);
}

std::string HttpSocket::Peer() const {
  error_code ec;
  const tcp::endpoint remote = socket_.remote_endpoint(ec);
  return ec ? std::string() : absl::StrCat(remote.address().to_string(), ":", remote.port());
}

}  // namespace aludel
