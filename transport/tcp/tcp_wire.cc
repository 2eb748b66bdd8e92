#include "transport/tcp/tcp_wire.h"

#include <cstring>

namespace aludel {

TcpHead EncodeTcpHead(TcpFrameType type, uint64_t number, absl::Span<const uint8_t> header,
                      uint64_t payload_bytes) {
  const TcpPrefix prefix{.magic = kTcpMagic,
                         .version = kTcpVersion,
                         .type = static_cast<uint8_t>(type),
                         .header_bytes = static_cast<uint32_t>(header.size()),
                         .payload_bytes = payload_bytes,
                         .number = number};
  TcpHead head;
  std::memcpy(head.bytes.data(), &prefix, sizeof(prefix));
  if (!header.empty()) std::memcpy(head.bytes.data() + sizeof(prefix), header.data(), header.size());
  head.size = sizeof(prefix) + header.size();
  return head;
}

void SetNumber(TcpHead& head, uint64_t number) {
  std::memcpy(head.bytes.data() + offsetof(TcpPrefix, number), &number, sizeof(number));
}

std::optional<TcpPrefix> ParseTcpPrefix(absl::Span<const uint8_t> bytes) {
  TcpPrefix prefix;
  if (bytes.size() < sizeof(prefix)) return std::nullopt;
  std::memcpy(&prefix, bytes.data(), sizeof(prefix));
  if (prefix.magic != kTcpMagic || prefix.version != kTcpVersion || prefix.reserved != 0 ||
      prefix.reserved2 != 0) {
    return std::nullopt;
  }
  switch (static_cast<TcpFrameType>(prefix.type)) {
    case TcpFrameType::kHello:
    case TcpFrameType::kWelcome:
      if (prefix.header_bytes != 0 || prefix.payload_bytes != 0) return std::nullopt;
      return prefix;
    case TcpFrameType::kData:
      if (prefix.header_bytes > kMaxHeaderBytes || prefix.payload_bytes > kMaxTcpPayloadBytes)
        return std::nullopt;
      return prefix;
  }
  return std::nullopt;
}

}  // namespace aludel
