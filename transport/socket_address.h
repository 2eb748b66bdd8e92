#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/wire.h"

namespace aludel {

// A socket address of either family, and its form on the wire. A value.
class SocketAddress {
 public:
  static SocketAddress FromEntry(const SocketEntry& entry);
  // Only IPv4 and IPv6 are known.
  static absl::StatusOr<SocketAddress> FromSystem(const sockaddr* address);
  // Every local address of that family, any free port.
  static SocketAddress Wildcard(int family);

  SocketEntry ToEntry() const;
  SocketAddress WithPort(uint16_t port) const;
  uint16_t port() const;
  int family() const { return storage_.ss_family; }
  bool is_loopback() const;
  bool is_wildcard() const;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const;
  std::string ToString() const;  // "10.0.0.3:4711"

 private:
  sockaddr_storage storage_ = {};
};

// Whether it is one of this machine: loopback, or of an interface that is up.
bool IsLocalAddress(const SocketAddress& address);

// Where a listener on this machine can be reached: the addresses of the interfaces in `devices`
// (comma-separated; those that are no network interfaces are passed over), or of all interfaces that are up
// when `devices` names none. One family, IPv4 if there is any; loopback only when it was named or there is
// nothing else. Never empty, at most kMaxSocketEntries.
absl::StatusOr<std::vector<SocketAddress>> ReachableAddresses(absl::string_view devices);

}  // namespace aludel
