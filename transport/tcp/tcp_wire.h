#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "transport/transport.h"

namespace aludel {

// The frames of a TCP connection: a prefix of fixed size, the caller's header, the payload. Fixed
// in PROTOCOL.md.

inline constexpr uint16_t kTcpVersion = 1;

enum class TcpFrameType : uint8_t {
  kHello = 1,    // first from the connecting side; the only one that is read before the connection is known
  kWelcome = 2,  // the one frame that the accepting side ever sends
  kData = 3      // any number, from the connecting side
};

struct TcpPrefix {
  uint32_t magic;          // kTcpMagic
  uint16_t version;        // kTcpVersion
  uint8_t type;            // TcpFrameType
  uint8_t reserved;        // 0
  uint32_t header_bytes;   // at most kMaxHeaderBytes; 0 unless kData
  uint32_t reserved2;      // 0
  uint64_t payload_bytes;  // at most kMaxTcpPayloadBytes; 0 unless kData
  uint64_t number;         // kHello, kWelcome: endpoint id of the accepting side; kData: counts from 0
};
inline constexpr uint32_t kTcpMagic = 0x544C4441;  // "ADLT"
inline constexpr uint64_t kMaxTcpPayloadBytes = uint64_t{1} << 40;
static_assert(sizeof(TcpPrefix) == 32 && offsetof(TcpPrefix, version) == 4 &&
              offsetof(TcpPrefix, type) == 6 && offsetof(TcpPrefix, header_bytes) == 8 &&
              offsetof(TcpPrefix, payload_bytes) == 16 && offsetof(TcpPrefix, number) == 24);

inline constexpr size_t kMaxTcpHeadBytes = sizeof(TcpPrefix) + kMaxHeaderBytes;

// Prefix and caller's header as they travel.
struct TcpHead {
  std::array<uint8_t, kMaxTcpHeadBytes> bytes;
  size_t size = 0;
};

// `header` has at most kMaxHeaderBytes bytes.
TcpHead EncodeTcpHead(TcpFrameType type, uint64_t number, absl::Span<const uint8_t> header,
                      uint64_t payload_bytes);

// The progress thread numbers messages, after their header was copied.
void SetNumber(TcpHead& head, uint64_t number);

// `bytes` are at least sizeof(TcpPrefix). Nothing where no transport of this version could have written them.
std::optional<TcpPrefix> ParseTcpPrefix(absl::Span<const uint8_t> bytes);

}  // namespace aludel
