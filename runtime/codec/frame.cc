#include "runtime/codec/frame.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {
namespace {

// Offsets of FORMAT.md, in wire order.
constexpr size_t kMagicAt = 0;
constexpr size_t kVersionAt = 4;
constexpr size_t kKindAt = 6;
constexpr size_t kTicketAt = 8;
constexpr size_t kEpochAt = 24;
constexpr size_t kSequenceAt = 32;
constexpr size_t kFirstLayerAt = 36;
constexpr size_t kLayersAt = 38;
constexpr size_t kPlaneAt = 40;
constexpr size_t kReserved16At = 42;
constexpr size_t kTokenBeginAt = 44;
constexpr size_t kTokensAt = 48;
constexpr size_t kReserved32At = 52;
constexpr size_t kArtifactAt = 56;
constexpr size_t kPayloadBytesAt = 64;
constexpr size_t kReserved64At = 68;
constexpr size_t kCrcAt = 76;

static_assert(kTicketAt + sizeof(TicketId) == kEpochAt);
static_assert(kReserved16At + 2 == kTokenBeginAt && kTokenBeginAt % 4 == 0);
static_assert(kArtifactAt % 8 == 0 && kArtifactAt + 8 == kPayloadBytesAt);
static_assert(kReserved64At + 8 == kCrcAt);
static_assert(kCrcAt + 4 == kFrameHeaderBytes);

template <typename T>
void PutLittle(uint8_t* at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<uint8_t>(uint64_t{value} >> (8 * i));
}

template <typename T>
T GetLittle(const uint8_t* at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{at[i]} << (8 * i);
  return static_cast<T>(value);
}

uint32_t FrameChecksum(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload) {
  constexpr uint8_t kZeros[4] = {};
  const uint32_t fields = Crc32c(0, header.first(kCrcAt));
  return Crc32c(Crc32c(fields, kZeros), payload);
}

bool KnownKind(uint16_t kind) {
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kRaw:
    case FrameKind::kScd:
    case FrameKind::kInt8:
    case FrameKind::kInt4:
    case FrameKind::kRecompute:
    case FrameKind::kAludel:
    case FrameKind::kLossless:
      return true;
  }
  return false;
}

absl::Status CheckCoverage(const FrameCoverage& coverage) {
  if (coverage.layers == 0) return absl::DataLossError("frame: layers is 0, want at least 1");
  if (coverage.tokens == 0) return absl::DataLossError("frame: tokens is 0, want at least 1");
  if (uint32_t{coverage.first_layer} + coverage.layers > UINT16_MAX) {
    return absl::DataLossError(absl::StrFormat("frame: first_layer %d and layers %d pass the limit of %d",
                                               coverage.first_layer, coverage.layers, UINT16_MAX));
  }
  if (uint64_t{coverage.token_begin} + coverage.tokens > UINT32_MAX) {
    return absl::DataLossError(absl::StrFormat("frame: token_begin %d and tokens %d pass the limit of %d",
                                               coverage.token_begin, coverage.tokens, UINT32_MAX));
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t Crc32c(uint32_t crc, absl::Span<const uint8_t> bytes) {
  // ISA-L takes an int length, wants the register (not the inverted checksum) and does not write its buffer.
  uint32_t state = ~crc;
  constexpr size_t kStep = size_t{1} << 30;
  while (!bytes.empty()) {
    const size_t step = std::min(bytes.size(), kStep);
    state = crc32_iscsi(const_cast<uint8_t*>(bytes.data()), static_cast<int>(step), state);
    bytes.remove_prefix(step);
  }
  return ~state;
}

std::array<uint8_t, kFrameHeaderBytes> EncodeFrameHeader(FrameHeader header,
                                                         absl::Span<const uint8_t> payload) {
  ALUDEL_CHECK(payload.size() <= kMaxPayloadBytes);
  std::array<uint8_t, kFrameHeaderBytes> bytes = {};
  uint8_t* out = bytes.data();
  std::copy(kFrameMagic.begin(), kFrameMagic.end(), out + kMagicAt);
  PutLittle(out + kVersionAt, kFrameVersion);
  PutLittle(out + kKindAt, static_cast<uint16_t>(header.kind));
  std::copy(header.ticket.begin(), header.ticket.end(), out + kTicketAt);
  PutLittle(out + kEpochAt, header.epoch);
  PutLittle(out + kSequenceAt, header.sequence);
  PutLittle(out + kFirstLayerAt, header.coverage.first_layer);
  PutLittle(out + kLayersAt, header.coverage.layers);
  PutLittle(out + kPlaneAt, header.coverage.plane);
  PutLittle(out + kTokenBeginAt, header.coverage.token_begin);
  PutLittle(out + kTokensAt, header.coverage.tokens);
  std::copy(header.artifact.begin(), header.artifact.end(), out + kArtifactAt);
  PutLittle(out + kPayloadBytesAt, static_cast<uint32_t>(payload.size()));
  PutLittle(out + kCrcAt, FrameChecksum(bytes, payload));
  return bytes;
}

std::array<uint8_t, 8> ArtifactPrefix(const std::string& hash_hex) {
  std::array<uint8_t, 8> prefix = {};
  if (hash_hex.size() < 2 * prefix.size()) return prefix;
  const std::string bytes = absl::HexStringToBytes(hash_hex.substr(0, 2 * prefix.size()));
  std::copy(bytes.begin(), bytes.end(), prefix.begin());
  return prefix;
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const uint8_t> bytes) {
  if (bytes.size() != kFrameHeaderBytes) {
    return absl::DataLossError(
        absl::StrFormat("frame: header is %d bytes, want %d", bytes.size(), kFrameHeaderBytes));
  }
  const uint8_t* in = bytes.data();
  if (std::memcmp(in + kMagicAt, kFrameMagic.data(), kFrameMagic.size()) != 0) {
    const absl::string_view found(reinterpret_cast<const char*>(in + kMagicAt), kFrameMagic.size());
    return absl::DataLossError(
        absl::StrFormat("frame: magic is %s, want 414c4446 (\"ALDF\")", absl::BytesToHexString(found)));
  }
  if (const auto version = GetLittle<uint16_t>(in + kVersionAt); version != kFrameVersion) {
    return absl::DataLossError(
        absl::StrFormat("frame: version is %d, this build reads %d", version, kFrameVersion));
  }
  const auto kind = GetLittle<uint16_t>(in + kKindAt);
  if (!KnownKind(kind)) {
    return absl::DataLossError(absl::StrFormat("frame: kind is %d, want 1 to 7", kind));
  }
  FrameHeader header;
  header.kind = static_cast<FrameKind>(kind);
  std::copy_n(in + kTicketAt, header.ticket.size(), header.ticket.begin());
  header.epoch = GetLittle<uint64_t>(in + kEpochAt);
  header.sequence = GetLittle<uint32_t>(in + kSequenceAt);
  header.coverage = {GetLittle<uint16_t>(in + kFirstLayerAt), GetLittle<uint16_t>(in + kLayersAt),
                     GetLittle<uint16_t>(in + kPlaneAt), GetLittle<uint32_t>(in + kTokenBeginAt),
                     GetLittle<uint32_t>(in + kTokensAt)};
  std::copy_n(in + kArtifactAt, header.artifact.size(), header.artifact.begin());
  header.payload_bytes = GetLittle<uint32_t>(in + kPayloadBytesAt);
  header.crc32c = GetLittle<uint32_t>(in + kCrcAt);
  if (absl::Status status = CheckCoverage(header.coverage); !status.ok()) return status;
  if (header.payload_bytes > kMaxPayloadBytes) {
    return absl::DataLossError(absl::StrFormat("frame: payload_bytes is %d, want at most %d",
                                               header.payload_bytes, kMaxPayloadBytes));
  }
  if (GetLittle<uint16_t>(in + kReserved16At) != 0 || GetLittle<uint32_t>(in + kReserved32At) != 0 ||
      GetLittle<uint64_t>(in + kReserved64At) != 0) {
    return absl::DataLossError("frame: reserved bytes are not zero");
  }
  return header;
}

absl::Status VerifyFrame(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload) {
  if (header.size() != kFrameHeaderBytes) {
    return absl::DataLossError(
        absl::StrFormat("frame: header is %d bytes, want %d", header.size(), kFrameHeaderBytes));
  }
  if (const auto want = GetLittle<uint32_t>(header.data() + kPayloadBytesAt); payload.size() != want) {
    return absl::DataLossError(
        absl::StrFormat("frame: payload is %d bytes, its header says %d", payload.size(), want));
  }
  const auto want = GetLittle<uint32_t>(header.data() + kCrcAt);
  if (const uint32_t found = FrameChecksum(header, payload); found != want) {
    return absl::DataLossError(
        absl::StrFormat("frame: checksum of header and payload is %08x, the header says %08x", found, want));
  }
  return absl::OkStatus();
}

FrameLedger::FrameLedger(const std::vector<bool>& shipped_layers, uint32_t token_begin, uint32_t token_end)
    : shipped_(shipped_layers),
      token_begin_(token_begin),
      token_end_(std::max(token_begin, token_end)),
      missing_(static_cast<uint64_t>(std::count(shipped_.begin(), shipped_.end(), true)) *
               (token_end_ - token_begin_)),
      received_(shipped_.size() * (token_end_ - token_begin_), false) {}

absl::Status FrameLedger::Add(const FrameCoverage& coverage) {
  const size_t layer_end = size_t{coverage.first_layer} + coverage.layers;
  const uint64_t token_end = uint64_t{coverage.token_begin} + coverage.tokens;
  const uint64_t row_cells = token_end_ - token_begin_;
  if (coverage.layers == 0 || layer_end > shipped_.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("frame covers layers [%d, %d), the handoff has %d",
                                                      coverage.first_layer, layer_end, shipped_.size()));
  }
  if (coverage.tokens == 0 || coverage.token_begin < token_begin_ || token_end > token_end_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame covers tokens [%d, %d), the handoff has [%d, %d)", coverage.token_begin,
                        token_end, token_begin_, token_end_));
  }
  if (coverage.plane != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("frame has plane %d, this handoff has plane 0 only", coverage.plane));
  }
  for (size_t layer = coverage.first_layer; layer < layer_end; ++layer) {
    if (!shipped_[layer]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("frame covers layer %d, which this format does not ship", layer));
    }
    for (uint64_t token = coverage.token_begin; token < token_end; ++token) {
      if (received_[layer * row_cells + token - token_begin_]) {
        return absl::AlreadyExistsError(
            absl::StrFormat("layer %d, token %d has already arrived", layer, token));
      }
    }
  }
  for (size_t layer = coverage.first_layer; layer < layer_end; ++layer) {
    const auto first =
        received_.begin() + static_cast<int64_t>(layer * row_cells + coverage.token_begin - token_begin_);
    std::fill_n(first, coverage.tokens, true);
  }
  missing_ -= uint64_t{coverage.layers} * coverage.tokens;
  return absl::OkStatus();
}

}  // namespace aludel
