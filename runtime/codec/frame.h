#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace aludel {

// The bytes of FORMAT.md: a fixed header in front of every payload, on the wire and on disk.

using TicketId = std::array<uint8_t, 16>;

enum class FrameKind : uint16_t {
  kRaw = 1,
  kScd = 2,
  kInt8 = 3,
  kInt4 = 4,
  kRecompute = 5,
  kAludel = 6,
  kLossless = 7,
};

// Which part of the cache a payload holds: layers [first_layer, first_layer + layers), tokens
// [token_begin, token_begin + tokens). `plane` numbers progressive refinements, 0 first.
struct FrameCoverage {
  uint16_t first_layer = 0;
  uint16_t layers = 1;
  uint16_t plane = 0;
  uint32_t token_begin = 0;
  uint32_t tokens = 0;
};

struct FrameHeader {
  FrameKind kind = FrameKind::kRaw;
  TicketId ticket = {};
  uint64_t epoch = 0;
  uint32_t sequence = 0;  // counts the frames of a ticket from 0
  FrameCoverage coverage;
  std::array<uint8_t, 8> artifact = {};  // first bytes of the artifact's encoder hash; zeros without one
  uint32_t payload_bytes = 0;
  uint32_t crc32c = 0;  // of the header with this field zero, then the payload
};

inline constexpr std::array<uint8_t, 4> kFrameMagic = {'A', 'L', 'D', 'F'};
inline constexpr uint16_t kFrameVersion = 1;
inline constexpr size_t kFrameHeaderBytes = 80;
// No payload is larger: a bound that a receiver can check before it trusts anything else.
inline constexpr uint32_t kMaxPayloadBytes = 1u << 30;

// The header's bytes, with the checksum over header and payload filled in.
std::array<uint8_t, kFrameHeaderBytes> EncodeFrameHeader(FrameHeader header,
                                                         absl::Span<const uint8_t> payload);

// The artifact field of a frame header: the first bytes of an artifact's hash (hex); zeros for "".
std::array<uint8_t, 8> ArtifactPrefix(const std::string& hash_hex);

// Checks length, magic, version, known kinds, coverage that neither is empty nor wraps, payload size and zero
// padding, not yet the checksum. DataLoss names the field, found and expected.
absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const uint8_t> bytes);

// DataLoss where the payload's length or the checksum does not agree with the header's bytes.
absl::Status VerifyFrame(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload);

// CRC-32C (Castagnoli) of `bytes` after bytes whose checksum is `crc` (0 at the start).
uint32_t Crc32c(uint32_t crc, absl::Span<const uint8_t> bytes);

// Which (layer, token) cells of a handoff were received. Refuses overlap, so that a duplicated or forged
// frame can never stand in for a missing one.
class FrameLedger {
 public:
  // Of tokens [token_begin, token_end).
  FrameLedger(const std::vector<bool>& shipped_layers, uint32_t token_begin, uint32_t token_end);
  // InvalidArgument where a frame lies outside the handoff; AlreadyExists where it overlaps one
  // that was received.
  absl::Status Add(const FrameCoverage& coverage);
  bool complete() const { return missing_ == 0; }
  uint64_t missing_cells() const { return missing_; }

 private:
  std::vector<bool> shipped_;
  uint32_t token_begin_;
  uint32_t token_end_;
  uint64_t missing_;
  std::vector<bool> received_;  // [layers, tokens]
};

}  // namespace aludel
