#include "transport/socket_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace aludel {
namespace {

const sockaddr_in& AsV4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}
const sockaddr_in6& AsV6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}

// Needs a scope that means nothing on another machine.
bool IsLinkLocal(const SocketAddress& address) {
  return address.family() == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr);
}

struct LocalAddress {
  std::string interface;
  SocketAddress address;
};

absl::StatusOr<std::vector<LocalAddress>> LocalAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot list network interfaces: ", strerror(errno)));
  }
  std::vector<LocalAddress> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    absl::StatusOr<SocketAddress> address = SocketAddress::FromSystem(entry->ifa_addr);
    if (address.ok() && !IsLinkLocal(*address)) addresses.push_back({entry->ifa_name, *address});
  }
  freeifaddrs(list);
  return addresses;
}

}  // namespace

SocketAddress SocketAddress::FromEntry(const SocketEntry& entry) {
  SocketAddress address = Wildcard(entry.family == 4 ? AF_INET : AF_INET6);
  if (entry.family == 4) {
    std::memcpy(&reinterpret_cast<sockaddr_in&>(address.storage_).sin_addr, entry.ip.data(), 4);
  } else {
    std::memcpy(&reinterpret_cast<sockaddr_in6&>(address.storage_).sin6_addr, entry.ip.data(), 16);
  }
  return address.WithPort(entry.port);
}

absl::StatusOr<SocketAddress> SocketAddress::FromSystem(const sockaddr* address) {
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket address family ", address->sa_family, ", want IPv4 or IPv6"));
  }
  SocketAddress copy;
  std::memcpy(&copy.storage_, address,
              address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return copy;
}

SocketAddress SocketAddress::Wildcard(int family) {
  SocketAddress address;  // all zeroes are INADDR_ANY, in6addr_any, and port 0
  address.storage_.ss_family = family;
  return address;
}

SocketEntry SocketAddress::ToEntry() const {
  SocketEntry entry = {};
  entry.family = family() == AF_INET ? 4 : 6;
  entry.port = port();
  if (family() == AF_INET) {
    std::memcpy(entry.ip.data(), &AsV4(storage_).sin_addr, 4);
  } else {
    std::memcpy(entry.ip.data(), &AsV6(storage_).sin6_addr, 16);
  }
  return entry;
}

SocketAddress SocketAddress::WithPort(uint16_t port) const {
  SocketAddress copy = *this;
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(copy.storage_).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(copy.storage_).sin6_port = htons(port);
  }
  return copy;
}

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET ? AsV4(storage_).sin_port : AsV6(storage_).sin6_port);
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return (ntohl(AsV4(storage_).sin_addr.s_addr) >> 24) == 127;
  return IN6_IS_ADDR_LOOPBACK(&AsV6(storage_).sin6_addr);
}

bool SocketAddress::is_wildcard() const {
  if (family() == AF_INET) return AsV4(storage_).sin_addr.s_addr == htonl(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&AsV6(storage_).sin6_addr);
}

socklen_t SocketAddress::size() const {
  return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "?";
  const void* ip = family() == AF_INET ? static_cast<const void*>(&AsV4(storage_).sin_addr)
                                       : static_cast<const void*>(&AsV6(storage_).sin6_addr);
  inet_ntop(family(), ip, text, sizeof(text));
  return family() == AF_INET ? absl::StrCat(text, ":", port()) : absl::StrCat("[", text, "]:", port());
}

bool IsLocalAddress(const SocketAddress& address) {
  if (address.is_loopback()) return true;
  const absl::StatusOr<std::vector<LocalAddress>> local = LocalAddresses();
  return local.ok() && std::any_of(local->begin(), local->end(), [&](const LocalAddress& candidate) {
           return candidate.address.ToEntry().family == address.ToEntry().family &&
                  candidate.address.ToEntry().ip == address.ToEntry().ip;
         });
}

absl::StatusOr<std::vector<SocketAddress>> ReachableAddresses(absl::string_view devices) {
  absl::StatusOr<std::vector<LocalAddress>> local = LocalAddresses();
  if (!local.ok()) return local.status();
  const std::vector<std::string> names = absl::StrSplit(devices, ',', absl::SkipWhitespace());
  const auto is_named = [&](const LocalAddress& candidate) {
    return std::find(names.begin(), names.end(), candidate.interface) != names.end();
  };
  const bool any_named = std::any_of(local->begin(), local->end(), is_named);
  const bool any_remote = std::any_of(local->begin(), local->end(), [](const LocalAddress& candidate) {
    return !candidate.address.is_loopback();
  });
  for (int family : {AF_INET, AF_INET6}) {
    std::vector<SocketAddress> chosen;
    for (const LocalAddress& candidate : *local) {
      const bool wanted = any_named ? is_named(candidate) : candidate.address.is_loopback() != any_remote;
      if (!wanted || candidate.address.family() != family || chosen.size() == kMaxSocketEntries) continue;
      chosen.push_back(candidate.address);
    }
    if (!chosen.empty()) return chosen;
  }
  return absl::UnavailableError(
      absl::StrCat("no network interface in \"", devices, "\" is up with an IPv4 or IPv6 address"));
}

}  // namespace aludel
