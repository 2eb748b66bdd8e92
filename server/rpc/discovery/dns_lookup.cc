#include "server/rpc/discovery/dns_lookup.h"

#include <ares.h>
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <mutex>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// How often is looked whether to stop.
constexpr absl::Duration kLook = absl::Milliseconds(50);

struct Channel {
  ares_channel channel = nullptr;
  ~Channel() {
    if (channel != nullptr) ares_destroy(channel);
  }
};

struct Result {
  bool done = false;
  int status = ARES_ETIMEOUT;
  std::set<std::string> addresses;
  int ttl = std::numeric_limits<int>::max();
};

std::string ToText(const sockaddr* address, const std::string& port) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text.data(), text.size());
    return absl::StrCat(text.data(), ":", port);
  }
  if (address->sa_family != AF_INET6) return "";
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text.data(), text.size());
  return absl::StrCat("[", text.data(), "]:", port);
}

struct Query {
  std::string port;
  Result result;
};

void OnAnswer(void* argument, int status, int /*timeouts*/, ares_addrinfo* found) {
  auto* query = static_cast<Query*>(argument);
  query->result.done = true;
  query->result.status = status;
  if (found == nullptr) return;
  for (const ares_addrinfo_node* node = found->nodes; node != nullptr; node = node->ai_next) {
    std::string text = ToText(node->ai_addr, query->port);
    if (text.empty()) continue;
    query->result.addresses.insert(std::move(text));
    query->result.ttl = std::clamp(node->ai_ttl, 0, query->result.ttl);  // /etc/hosts has none: 0
  }
  ares_freeaddrinfo(found);
}

void Turn(ares_channel channel) {
  std::array<ares_socket_t, ARES_GETSOCK_MAXNUM> sockets{};
  const int wanted = ares_getsock(channel, sockets.data(), static_cast<int>(sockets.size()));
  std::vector<pollfd> polled;
  for (int i = 0; i < ARES_GETSOCK_MAXNUM; ++i) {
    const int events =
        (ARES_GETSOCK_READABLE(wanted, i) ? POLLIN : 0) | (ARES_GETSOCK_WRITABLE(wanted, i) ? POLLOUT : 0);
    if (events != 0) polled.push_back({sockets[static_cast<size_t>(i)], static_cast<int16_t>(events), 0});
  }
  poll(polled.data(), polled.size(), static_cast<int>(absl::ToInt64Milliseconds(kLook)));
  for (const pollfd& one : polled) {
    const bool in = (one.revents & (POLLIN | POLLERR | POLLHUP)) != 0;
    ares_process_fd(channel, in ? one.fd : ARES_SOCKET_BAD,
                    (one.revents & POLLOUT) != 0 ? one.fd : ARES_SOCKET_BAD);
  }
  ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);  // its timeouts
}

}  // namespace

absl::StatusOr<DnsName> ParseDnsName(absl::string_view target) {
  const auto bad = [target] {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", target, "\": want dns:///name:port or dns://server/name:port"));
  };
  absl::string_view rest = target;
  if (!absl::ConsumePrefix(&rest, "dns:")) return bad();
  DnsName name;
  if (absl::ConsumePrefix(&rest, "//")) {
    const size_t slash = rest.find('/');
    if (slash == absl::string_view::npos) return bad();
    name.server = std::string(rest.substr(0, slash));
    rest.remove_prefix(slash + 1);
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0 || colon + 1 == rest.size()) return bad();
  absl::string_view host = rest.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]")) return bad();
  if (host.empty() || (host.size() == colon && host.find(':') != absl::string_view::npos)) return bad();
  name.host = std::string(host);
  name.port = std::string(rest.substr(colon + 1));
  if (!std::all_of(name.port.begin(), name.port.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return bad();
  return name;
}

absl::StatusOr<DnsAnswer> LookUp(const DnsName& name, absl::Duration timeout,
                                 const std::function<bool()>& stopped) {
  static std::once_flag once;
  std::call_once(once, [] { ares_library_init(ARES_LIB_INIT_ALL); });
  Channel channel;
  ares_options options{};
  options.timeout = 1000;
  options.tries = 3;
  // A new channel each time, so that resolv.conf is read anew and nothing is kept.
  if (const int status = ares_init_options(&channel.channel, &options, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES);
      status != ARES_SUCCESS) {
    return absl::UnavailableError(absl::StrCat("DNS: ", ares_strerror(status)));
  }
  if (!name.server.empty()) {
    if (const int status = ares_set_servers_ports_csv(channel.channel, name.server.c_str());
        status != ARES_SUCCESS) {
      return absl::UnavailableError(
          absl::StrCat("DNS server \"", name.server, "\": ", ares_strerror(status)));
    }
  }
  const absl::Time until = MonotonicNow() + timeout;
  // One family after the other: together, a family whose question fails would seem to have no addresses.
  int status = ARES_ENOTFOUND;
  for (const int family : {AF_INET, AF_INET6}) {
    if (family == AF_INET && name.host.find(':') != std::string::npos) continue;  // an IPv6 address
    Query query{.port = name.port};
    ares_addrinfo_hints hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    ares_getaddrinfo(channel.channel, name.host.c_str(), nullptr, &hints, &OnAnswer, &query);
    while (!query.result.done && MonotonicNow() < until && !stopped()) Turn(channel.channel);
    // OnAnswer is called before this returns, with what there is.
    if (!query.result.done) ares_cancel(channel.channel);
    const Result& result = query.result;
    if (!result.addresses.empty()) {
      return DnsAnswer{{result.addresses.begin(), result.addresses.end()}, absl::Seconds(result.ttl)};
    }
    status = result.status;
    if (status != ARES_ENOTFOUND && status != ARES_ENODATA) {
      return absl::UnavailableError(absl::StrCat(name.host, ": ", ares_strerror(status)));
    }
  }
  return absl::NotFoundError(absl::StrCat(name.host, ": ", ares_strerror(status)));
}

}  // namespace aludel
