#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace aludel {

// A plain blocking TCP socket of a test that sends what no transport would. Closed when this dies.
class RawSocket {
 public:
  static RawSocket ConnectTo(uint16_t port);  // on 127.0.0.1
  static RawSocket Listen(uint16_t* port);
  RawSocket(RawSocket&& other) noexcept : socket_(other.socket_) { other.socket_ = -1; }
  RawSocket& operator=(RawSocket&& other) noexcept;
  RawSocket(const RawSocket&) = delete;
  ~RawSocket();

  RawSocket Accept();
  bool connected() const { return socket_ >= 0; }
  // False where the peer has closed.
  bool Write(const std::string& bytes);
  // What came until the peer closed or `limit` passed; at most `most` bytes.
  std::string Read(size_t most, absl::Duration limit);
  // The peer ends the connection in that time.
  bool WaitClosed(absl::Duration limit);

 private:
  explicit RawSocket(int socket) : socket_(socket) {}
  int socket_;
};

}  // namespace aludel
