#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/socket_address.h"
#include "transport/tcp/poller.h"
#include "transport/wire.h"

namespace aludel {

// A listening socket. Belongs to the progress thread after Open.
class TcpListener : public Polled {
 public:
  // Gets a connected socket, non-blocking, and owns it.
  using OnSocket = std::function<void(int socket)>;

  // `listen` is host:port; port 0 is any that is free. InvalidArgument where it is no such thing, Unavailable
  // where the port is taken.
  static absl::StatusOr<std::unique_ptr<TcpListener>> Open(const std::string& listen, Poller* poller,
                                                           OnSocket on_socket);
  ~TcpListener() override;

  // Where peers reach it: the address it was told, or all of this machine's where that is a wildcard.
  const std::vector<SocketEntry>& sockets() const { return sockets_; }

  void OnReady() override;
  // Out of descriptors it rests for a moment, as what it cannot take would wake it for ever.
  absl::Time Advance(absl::Time now);

 private:
  TcpListener(int socket, Poller* poller, OnSocket on_socket)
      : socket_(socket), poller_(poller), on_socket_(std::move(on_socket)) {}

  const int socket_;
  Poller* const poller_;
  const OnSocket on_socket_;
  std::vector<SocketEntry> sockets_;
  absl::Time rests_until_ = absl::InfiniteFuture();  // a time while it rests
};

}  // namespace aludel
