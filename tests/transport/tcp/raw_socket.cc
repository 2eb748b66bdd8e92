#include "tests/transport/tcp/raw_socket.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace aludel {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

RawSocket RawSocket::ConnectTo(uint16_t port) {
  RawSocket self(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  if (connect(self.socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(std::exchange(self.socket_, -1));
  }
  return self;
}

RawSocket RawSocket::Listen(uint16_t* port) {
  RawSocket self(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  bind(self.socket_, reinterpret_cast<const sockaddr*>(&address), size);
  listen(self.socket_, 64);
  getsockname(self.socket_, reinterpret_cast<sockaddr*>(&address), &size);
  *port = ntohs(address.sin_port);
  return self;
}

RawSocket& RawSocket::operator=(RawSocket&& other) noexcept {
  std::swap(socket_, other.socket_);
  return *this;
}

RawSocket::~RawSocket() {
  if (socket_ >= 0) close(socket_);
}

RawSocket RawSocket::Accept() { return RawSocket(accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC)); }

bool RawSocket::Write(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t sent = send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += static_cast<size_t>(sent);
  }
  return true;
}

std::string RawSocket::Read(size_t most, absl::Duration limit) {
  std::string bytes;
  const absl::Time until = absl::Now() + limit;
  while (bytes.size() < most) {
    const int wait = std::max(0, static_cast<int>(absl::ToInt64Milliseconds(until - absl::Now())));
    pollfd descriptor = {.fd = socket_, .events = POLLIN, .revents = 0};
    if (poll(&descriptor, 1, wait) <= 0) break;
    char buffer[4096];
    const ssize_t got = recv(socket_, buffer, std::min(sizeof(buffer), most - bytes.size()), 0);
    if (got <= 0) break;
    bytes.append(buffer, static_cast<size_t>(got));
  }
  return bytes;
}

bool RawSocket::WaitClosed(absl::Duration limit) {
  const absl::Time until = absl::Now() + limit;
  while (absl::Now() < until) {
    pollfd descriptor = {.fd = socket_, .events = POLLIN, .revents = 0};
    if (poll(&descriptor, 1, 50) <= 0) continue;
    char buffer[4096];
    if (recv(socket_, buffer, sizeof(buffer), 0) <= 0) return true;
  }
  return false;
}

}  // namespace aludel
