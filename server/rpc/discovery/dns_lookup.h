#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace aludel {

// dns:///name:port, or dns://server[:port]/name:port, which asks that DNS server. As gRPC has it.
struct DnsName {
  std::string server;  // host[:port]; "": the system's
  std::string host;    // an IPv6 address without its brackets
  std::string port;
};
// InvalidArgument names what was found.
absl::StatusOr<DnsName> ParseDnsName(absl::string_view target);

struct DnsAnswer {
  std::vector<std::string> addresses;  // host:port, IPv6 in brackets; in order, each once; at least one
  absl::Duration ttl;                  // of the one that is to be asked for again first; /etc/hosts: zero
};
// Every address of the name, by /etc/hosts and DNS; asked for over again and not kept. Of one family, so that a server that
// has both is one: IPv4, or IPv6 where the name has no IPv4 address. Waits up to `timeout`, and looks at `stopped` meanwhile.
// NotFound where there is none, Unavailable where a question has no answer or a failure for one.
absl::StatusOr<DnsAnswer> LookUp(const DnsName& name, absl::Duration timeout,
                                 const std::function<bool()>& stopped);

}  // namespace aludel
