#pragma once

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "transport/wire.h"

namespace aludel {

// A set of socket addresses, written as "10.1.0.0/16", "10.1.2.3", "10.1.2.3:7202", "fd00::/8",
// "[fd00::1]:7202". A value.
class AddressPattern {
 public:
  static absl::StatusOr<AddressPattern> Parse(absl::string_view text);
  bool Contains(const SocketEntry& address) const;

 private:
  SocketEntry network_ = {};  // port 0: any
  int bits_ = 0;              // of its address that count
};

// "10.1.2.3" or "fd00::1" (an IPv4 address in IPv6 is taken as the former), with port 0. InvalidArgument for
// anything else, names too.
absl::StatusOr<SocketEntry> ParseIpAddress(absl::string_view text);

// Whether both have one IP address, whatever their ports, and however it is written.
bool SameIpAddress(const SocketEntry& a, const SocketEntry& b);

}  // namespace aludel
