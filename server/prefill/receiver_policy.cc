#include "server/prefill/receiver_policy.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "transport/socket_address.h"

namespace aludel {
namespace {

// The address in "ipv4:10.0.0.7:4711", "ipv6:[fd00::1]:4711" or "ipv6:%5Bfd00::1%5D:4711"; nothing for
// other peers.
std::optional<SocketEntry> AddressOf(const std::string& peer) {
  const std::string text = absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  absl::string_view host = text;
  if (!absl::ConsumePrefix(&host, "ipv4:") && !absl::ConsumePrefix(&host, "ipv6:")) return std::nullopt;
  host = host.substr(0, host.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) host = host.substr(0, host.find_first_of("%]"));
  const absl::StatusOr<SocketEntry> address = ParseIpAddress(host);
  return address.ok() ? std::optional<SocketEntry>(*address) : std::nullopt;
}

bool IsOfThisMachine(const SocketEntry& address) { return IsLocalAddress(SocketAddress::FromEntry(address)); }

}  // namespace

absl::StatusOr<std::string> ReceiverPolicy::Admit(const std::string& address,
                                                  const std::string& caller) const {
  absl::StatusOr<EndpointAddress> receiver = ParseAddress(address, kind_);
  if (!receiver.ok()) return receiver.status();
  if (kind_ == AddressKind::kLoopback) return address;
  const std::optional<SocketEntry> from = AddressOf(caller);
  const auto refused = [&](const SocketEntry& socket) {
    if (from && SameIpAddress(socket, *from)) return false;
    if (std::any_of(allowed_.begin(), allowed_.end(),
                    [&](const AddressPattern& pattern) { return pattern.Contains(socket); })) {
      return false;
    }
    return !(from && IsOfThisMachine(*from) && IsOfThisMachine(socket));
  };
  std::vector<SocketEntry>& sockets = receiver->sockets;
  sockets.erase(std::remove_if(sockets.begin(), sockets.end(), refused), sockets.end());
  if (!sockets.empty()) return EncodeAddress(*receiver);
  return absl::PermissionDeniedError(
      "receiver_address: found neither an address of the caller's nor one of receiver_addresses");
}

}  // namespace aludel
