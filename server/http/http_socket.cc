#include "server/http/http_socket.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/buffer.hpp>
#include <cerrno>
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

// Asks for the certificate of `server`, and where the context verifies takes no other.
bool ExpectServer(SSL* tls, const std::string& server) {
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), server.c_str()) == 1) return true;
  ERR_clear_error();  // no address then
  SSL_set_hostflags(tls, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  return SSL_set1_host(tls, server.c_str()) == 1 && SSL_set_tlsext_host_name(tls, server.c_str()) == 1;
}

}  // namespace

HttpSocket::HttpSocket(tcp::socket socket, const std::shared_ptr<SSL_CTX>& tls, const std::string& server)
    : socket_(std::move(socket)), tls_(nullptr, SSL_free) {
  error_code ec;
  socket_.non_blocking(true, ec);
  socket_.set_option(tcp::no_delay(true), ec);
  if (tls == nullptr) return;
  tls_.reset(SSL_new(tls.get()));  // keeps the context alive
  broken_ = tls_ == nullptr || SSL_set_fd(tls_.get(), static_cast<int>(socket_.native_handle())) != 1;
  if (broken_) return;
  if (server.empty()) {
    SSL_set_accept_state(tls_.get());
  } else {
    SSL_set_connect_state(tls_.get());
    broken_ = !ExpectServer(tls_.get(), server);
  }
}

HttpSocket::Io HttpSocket::FromTls(int result) {
  const int system_error = errno;
  const int error = SSL_get_error(tls_.get(), result);
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  if (error == SSL_ERROR_WANT_READ) return Io::kWaitRead;
  if (error == SSL_ERROR_WANT_WRITE) return Io::kWaitWrite;
  broken_ = true;
  if (error == SSL_ERROR_SYSCALL && system_error != 0) {
    reason_ = error_code(system_error, boost::system::system_category()).message();
  } else if (ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    reason_ = absl::StrCat("certificate: ", X509_verify_cert_error_string(SSL_get_verify_result(tls_.get())));
  } else if (const char* text = ERR_reason_error_string(code); text != nullptr) {
    reason_ = text;
  }
  return Io::kClosed;
}

HttpSocket::Io HttpSocket::FromPlain(const error_code& ec, Io wait) {
  if (!ec) return Io::kDone;
  if (WouldBlock(ec)) return wait;
  reason_ = ec == asio::error::eof ? "" : ec.message();
  return Io::kClosed;
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
  return FromPlain(ec, Io::kWaitRead);
}

HttpSocket::Io HttpSocket::Write(const char* data, size_t size, size_t* written) {
  if (broken_) return Io::kClosed;
  if (tls_ != nullptr) {
    const int result = SSL_write_ex(tls_.get(), data, size, written);
    return result == 1 ? Io::kDone : FromTls(result);
  }
  error_code ec;
  *written = socket_.write_some(asio::buffer(data, size), ec);
  return FromPlain(ec, Io::kWaitWrite);
}

bool HttpSocket::buffered() const { return tls_ != nullptr && !broken_ && SSL_pending(tls_.get()) > 0; }

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
