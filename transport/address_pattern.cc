#include "transport/address_pattern.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

// An IPv4 address that is written as IPv6 (::ffff:a.b.c.d) is that IPv4 address.
SocketEntry Unmapped(SocketEntry address) {
  constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (address.family != 6 || !std::equal(kMapped.begin(), kMapped.end(), address.ip.begin())) return address;
  address.family = 4;
  std::copy(address.ip.begin() + 12, address.ip.end(), address.ip.begin());
  std::fill(address.ip.begin() + 4, address.ip.end(), 0);
  return address;
}

int AddressBits(const SocketEntry& address) { return address.family == 4 ? 32 : 128; }

absl::Status NoPattern(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no IP address, address/bits or address:port"));
}

}  // namespace

absl::StatusOr<SocketEntry> ParseIpAddress(absl::string_view text) {
  const std::string copy(text);
  SocketEntry address = {};
  if (inet_pton(AF_INET, copy.c_str(), address.ip.data()) == 1) {
    address.family = 4;
  } else if (inet_pton(AF_INET6, copy.c_str(), address.ip.data()) == 1) {
    address.family = 6;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no IP address"));
  }
  return Unmapped(address);
}

bool SameIpAddress(const SocketEntry& a, const SocketEntry& b) {
  const SocketEntry one = Unmapped(a);
  const SocketEntry other = Unmapped(b);
  return one.family == other.family && one.ip == other.ip;
}

absl::StatusOr<AddressPattern> AddressPattern::Parse(absl::string_view text) {
  AddressPattern pattern;
  absl::string_view host = text;
  int bits = -1;
  int port = 0;
  const size_t slash = text.find('/');
  const size_t colon = text.rfind(':');
  const bool bracketed = !text.empty() && text.front() == '[';
  if (slash != absl::string_view::npos) {
    host = text.substr(0, slash);
    if (!absl::SimpleAtoi(text.substr(slash + 1), &bits) || bits < 0) return NoPattern(text);
  } else if (colon != absl::string_view::npos && (bracketed || text.find(':') == colon)) {
    host = text.substr(0, colon);
    if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 65535) return NoPattern(text);
    if (bracketed) {
      if (host.size() < 2 || host.back() != ']') return NoPattern(text);
      host = host.substr(1, host.size() - 2);
    }
  }
  const absl::StatusOr<SocketEntry> network = ParseIpAddress(host);
  if (!network.ok() || bits > AddressBits(*network)) return NoPattern(text);
  pattern.network_ = *network;
  pattern.network_.port = static_cast<uint16_t>(port);
  pattern.bits_ = bits < 0 ? AddressBits(*network) : bits;
  return pattern;
}

bool AddressPattern::Contains(const SocketEntry& address) const {
  const SocketEntry other = Unmapped(address);
  if (other.family != network_.family || (network_.port != 0 && network_.port != other.port)) return false;
  for (int bit = 0; bit < bits_; ++bit) {
    const uint8_t mask = static_cast<uint8_t>(0x80 >> (bit % 8));
    if (((network_.ip[bit / 8] ^ other.ip[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

}  // namespace aludel
