#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/transport.h"

namespace aludel {

// The bytes that two transports agree on: the address that a peer passes to Connect, and the prefix in front
// of every message header of UCX (TCP's is in tcp/tcp_wire.h). Fixed in PROTOCOL.md; changing either changes
// kProtocolVersion in the same commit.

inline constexpr uint16_t kProtocolVersion = 1;

static_assert(std::endian::native == std::endian::little,
              "the wire is little endian, and is copied as it is");

enum class MessageType : uint8_t { kPing = 1, kPong = 2, kData = 3 };

// Travels as the start of the active message header, before the caller's header.
struct MessagePrefix {
  uint32_t magic;         // kMessageMagic
  uint16_t version;       // kProtocolVersion
  uint8_t type;           // MessageType
  uint8_t reserved;       // 0
  uint32_t header_bytes;  // of the caller's header that follows; 0 unless kData
  uint32_t reserved2;     // 0
  uint64_t sender;        // endpoint id of the transport that sends this
  uint64_t sequence;  // kData: counts from 0 on each channel; kPing, kPong: the nonce of the connect attempt
};
inline constexpr uint32_t kMessageMagic = 0x4D4C4441;  // "ADLM"
static_assert(sizeof(MessagePrefix) == 32 && offsetof(MessagePrefix, version) == 4 &&
              offsetof(MessagePrefix, type) == 6 && offsetof(MessagePrefix, header_bytes) == 8 &&
              offsetof(MessagePrefix, sender) == 16 && offsetof(MessagePrefix, sequence) == 24);

inline constexpr size_t kMaxWireHeaderBytes = sizeof(MessagePrefix) + kMaxHeaderBytes;

// Prefix and header as they travel.
struct WireHeader {
  std::array<uint8_t, kMaxWireHeaderBytes> bytes;
  size_t size = 0;
};

// `header` has at most kMaxHeaderBytes bytes.
WireHeader EncodeWireHeader(MessageType type, uint64_t sender, uint64_t sequence,
                            absl::Span<const uint8_t> header);

// The progress thread numbers messages, after their header was copied.
inline void SetSequence(WireHeader& wire, uint64_t sequence) {
  std::memcpy(wire.bytes.data() + offsetof(MessagePrefix, sequence), &sequence, sizeof(sequence));
}

struct ParsedHeader {
  MessageType type;
  uint64_t sender;
  uint64_t sequence;
  absl::Span<const uint8_t> header;  // points into the bytes that were parsed
};

// Nothing when the bytes are not a whole, well-formed header of this protocol version.
std::optional<ParsedHeader> ParseWireHeader(absl::Span<const uint8_t> bytes);

enum class AddressKind : uint8_t { kLoopback = 1, kUcx = 2, kTcp = 3 };

// Of a TransportOptions::kind.
absl::StatusOr<AddressKind> AddressKindOf(absl::string_view transport_kind);

// One place where a listener can be reached.
struct SocketEntry {
  uint8_t family;              // 4 or 6
  uint8_t reserved;            // 0
  uint16_t port;               // host order in memory, little endian on the wire
  std::array<uint8_t, 16> ip;  // network order; an IPv4 address takes the first four bytes, the rest are 0
};
static_assert(sizeof(SocketEntry) == 20 && offsetof(SocketEntry, port) == 2 &&
              offsetof(SocketEntry, ip) == 4);

inline constexpr size_t kMaxSocketEntries = 8;

// What Transport::address() says. The random endpoint id tells a peer that it has reached the process it
// meant, and not another one that happens to listen at the same place.
struct EndpointAddress {
  AddressKind kind;
  uint64_t endpoint_id;
  std::vector<SocketEntry> sockets;  // 1 to kMaxSocketEntries, in the order to try; kLoopback: none
};

std::string EncodeAddress(const EndpointAddress& address);

// InvalidArgument for anything that EncodeAddress of this version and kind could not have written.
absl::StatusOr<EndpointAddress> ParseAddress(absl::string_view bytes, AddressKind want_kind);

// From the operating system's random source; never 0.
uint64_t RandomId();

}  // namespace aludel
