#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/http/http_socket.h"

namespace aludel {

// What one connection receives: the TLS handshake, then bytes while its owner has room for them. Between two reads it
// waits for readiness without a buffer, so that an idle connection stays small. Lives on its loop's thread.
class HttpReader {
 public:
  // Called on the loop's thread. Each may close the connection.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Bytes can be read: Read() may be called.
    virtual void OnOpened() = 0;
    // Bytes that may come now; 0: it calls Read() when there is room again.
    virtual size_t Room() const = 0;
    virtual void OnBytes(absl::string_view bytes) = 0;
    // The client sends no more.
    virtual void OnInputEnd() = 0;
    virtual void OnReadFailed() = 0;
  };

  // `scratch` is where bytes pass through, shared by the loop's connections. All must outlive this.
  HttpReader(boost::asio::io_context* loop, HttpSocket* socket, absl::Span<char> scratch, Owner* owner)
      : loop_(loop), socket_(socket), scratch_(scratch), owner_(owner) {}

  // This and `owner` live as long as `alive` does.
  void Start(std::weak_ptr<void> alive);
  // Goes on reading, if it does not anyway.
  void Read() { Wait(HttpSocket::Io::kWaitRead); }
  void Close() { closed_ = true; }

  bool ended() const { return ended_; }

 private:
  using Io = HttpSocket::Io;

  void Handshake();
  void Wait(Io io);
  void OnReadable();

  boost::asio::io_context* const loop_;
  HttpSocket* const socket_;
  const absl::Span<char> scratch_;
  Owner* const owner_;
  std::weak_ptr<void> alive_;
  bool waiting_ = false;
  bool ended_ = false;  // the client sends no more
  bool closed_ = false;
};

}  // namespace aludel
