#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace aludel {

// A client that sends exactly the bytes it is told to, well-formed or not. One per connection; blocking, with
// a deadline on every wait.
class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // False when the peer has closed.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  // Reads until `text` has come, the peer closes, or the deadline passes; returns everything not yet returned
  // up to and including `text`.
  std::string ReadUntil(absl::string_view text, absl::Duration timeout = absl::Seconds(5)) {
    const absl::Time deadline = absl::Now() + timeout;
    size_t at;
    while ((at = buffer_.find(text.data(), 0, text.size())) == std::string::npos) {
      if (!Fill(deadline)) return std::move(buffer_);
    }
    std::string result = buffer_.substr(0, at + text.size());
    buffer_.erase(0, at + text.size());
    return result;
  }

  // Everything until the peer closes or the deadline passes; closed() tells which.
  std::string ReadAll(absl::Duration timeout = absl::Seconds(5)) {
    const absl::Time deadline = absl::Now() + timeout;
    while (Fill(deadline)) {
    }
    return std::exchange(buffer_, {});
  }
  bool closed() const { return closed_; }
  int fd() const { return fd_; }

 private:
  bool Fill(absl::Time deadline) {
    pollfd poll_fd = {fd_, POLLIN, 0};
    const int wait_ms = static_cast<int>(absl::ToInt64Milliseconds(deadline - absl::Now()));
    if (closed_ || wait_ms <= 0 || poll(&poll_fd, 1, wait_ms) <= 0) return false;
    char chunk[16384];
    const ssize_t n = recv(fd_, chunk, sizeof(chunk), 0);
    closed_ = n <= 0;
    if (n > 0) buffer_.append(chunk, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_;
  bool closed_ = false;
  std::string buffer_;
};

}  // namespace aludel
