#include "transport/tcp/tcp_listener.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr int kBacklog = 512;
constexpr int kAcceptsPerRound = 64;
constexpr absl::Duration kRest = absl::Milliseconds(100);

absl::StatusOr<SocketAddress> Resolve(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("listen is \"", listen, "\", want host:port"));
  }
  std::string host = listen.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), listen.c_str() + colon + 1, &hints, &found); error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("listen is \"", listen, "\": ", gai_strerror(error)));
  }
  absl::StatusOr<SocketAddress> address = SocketAddress::FromSystem(found->ai_addr);
  freeaddrinfo(found);
  return address;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Open(const std::string& listen, Poller* poller,
                                                               OnSocket on_socket) {
  const absl::StatusOr<SocketAddress> address = Resolve(listen);
  if (!address.ok()) return address.status();
  const auto failed = [&](const char* what) {
    return absl::UnavailableError(
        absl::StrCat("listen on ", address->ToString(), ": ", what, ": ", strerror(errno)));
  };
  const int fd = socket(address->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed("socket");
  auto listener = std::unique_ptr<TcpListener>(new TcpListener(fd, poller, std::move(on_socket)));
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, address->get(), address->size()) != 0) return failed("bind");
  if (::listen(fd, kBacklog) != 0) return failed("listen");
  sockaddr_storage bound_to;
  socklen_t size = sizeof(bound_to);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound_to), &size) != 0) return failed("getsockname");
  const absl::StatusOr<SocketAddress> bound =
      SocketAddress::FromSystem(reinterpret_cast<sockaddr*>(&bound_to));
  if (!bound.ok()) return bound.status();

  std::vector<SocketAddress> reachable = {*bound};
  if (bound->is_wildcard()) {
    absl::StatusOr<std::vector<SocketAddress>> local = ReachableAddresses("");
    if (!local.ok()) return local.status();
    reachable = *std::move(local);
  }
  for (const SocketAddress& place : reachable) {
    listener->sockets_.push_back(place.WithPort(bound->port()).ToEntry());
  }
  poller->Watch(fd, listener.get(), /*writable=*/false);
  return listener;
}

TcpListener::~TcpListener() {
  poller_->Forget(socket_);
  close(socket_);
}

void TcpListener::OnReady() {
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    const int accepted = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted >= 0) {
      on_socket_(accepted);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      poller_->Forget(socket_);
      rests_until_ = MonotonicNow() + kRest;
      return;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    // A connection that ended before it was accepted: the next one.
  }
}

absl::Time TcpListener::Advance(absl::Time now) {
  if (now >= rests_until_) {
    rests_until_ = absl::InfiniteFuture();
    poller_->Watch(socket_, this, /*writable=*/false);
  }
  return rests_until_;
}

}  // namespace aludel
