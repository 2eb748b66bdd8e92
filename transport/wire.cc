#include "transport/wire.h"

#include <algorithm>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace aludel {
namespace {

struct AddressHeader {
  uint32_t magic;    // kAddressMagic
  uint16_t version;  // kProtocolVersion
  uint8_t kind;      // AddressKind
  uint8_t sockets;   // count of SocketEntry that follow
  uint64_t endpoint_id;
};
constexpr uint32_t kAddressMagic = 0x41444C41;  // "ALDA"
static_assert(sizeof(AddressHeader) == 16 && offsetof(AddressHeader, endpoint_id) == 8);

bool IsValid(const SocketEntry& entry) {
  if (entry.reserved != 0 || entry.port == 0) return false;
  if (entry.family == 6) return true;
  return entry.family == 4 &&
         std::all_of(entry.ip.begin() + 4, entry.ip.end(), [](uint8_t byte) { return byte == 0; });
}

}  // namespace

WireHeader EncodeWireHeader(MessageType type, uint64_t sender, uint64_t sequence,
                            absl::Span<const uint8_t> header) {
  const MessagePrefix prefix{.magic = kMessageMagic,
                             .version = kProtocolVersion,
                             .type = static_cast<uint8_t>(type),
                             .header_bytes = static_cast<uint32_t>(header.size()),
                             .sender = sender,
                             .sequence = sequence};
  WireHeader wire;
  std::memcpy(wire.bytes.data(), &prefix, sizeof(prefix));
  if (!header.empty()) std::memcpy(wire.bytes.data() + sizeof(prefix), header.data(), header.size());
  wire.size = sizeof(prefix) + header.size();
  return wire;
}

std::optional<ParsedHeader> ParseWireHeader(absl::Span<const uint8_t> bytes) {
  MessagePrefix prefix;
  if (bytes.size() < sizeof(prefix)) return std::nullopt;
  std::memcpy(&prefix, bytes.data(), sizeof(prefix));
  const bool known_type = prefix.type >= static_cast<uint8_t>(MessageType::kPing) &&
                          prefix.type <= static_cast<uint8_t>(MessageType::kData);
  if (prefix.magic != kMessageMagic || prefix.version != kProtocolVersion || !known_type ||
      prefix.reserved != 0 || prefix.reserved2 != 0) {
    return std::nullopt;
  }
  const auto type = static_cast<MessageType>(prefix.type);
  const size_t header_bytes = bytes.size() - sizeof(prefix);
  const size_t limit = type == MessageType::kData ? kMaxHeaderBytes : 0;
  if (prefix.header_bytes != header_bytes || header_bytes > limit) return std::nullopt;
  return ParsedHeader{type, prefix.sender, prefix.sequence, bytes.subspan(sizeof(prefix))};
}

absl::StatusOr<AddressKind> AddressKindOf(absl::string_view transport_kind) {
  if (transport_kind == "tcp") return AddressKind::kTcp;
  if (transport_kind == "ucx") return AddressKind::kUcx;
  if (transport_kind == "loopback") return AddressKind::kLoopback;
  return absl::InvalidArgumentError(
      absl::StrCat("transport kind is \"", transport_kind, "\", want \"tcp\", \"ucx\" or \"loopback\""));
}

std::string EncodeAddress(const EndpointAddress& address) {
  const AddressHeader header{.magic = kAddressMagic,
                             .version = kProtocolVersion,
                             .kind = static_cast<uint8_t>(address.kind),
                             .sockets = static_cast<uint8_t>(address.sockets.size()),
                             .endpoint_id = address.endpoint_id};
  std::string bytes(sizeof(header) + address.sockets.size() * sizeof(SocketEntry), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (!address.sockets.empty()) {
    std::memcpy(bytes.data() + sizeof(header), address.sockets.data(),
                address.sockets.size() * sizeof(SocketEntry));
  }
  return bytes;
}

absl::StatusOr<EndpointAddress> ParseAddress(absl::string_view bytes, AddressKind want_kind) {
  AddressHeader header;
  if (bytes.size() < sizeof(header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport address has ", bytes.size(), " bytes, want at least ", sizeof(header)));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kAddressMagic) {
    return absl::InvalidArgumentError(
        absl::StrFormat("transport address starts with 0x%08x, want 0x%08x", header.magic, kAddressMagic));
  }
  if (header.version != kProtocolVersion) {
    return absl::InvalidArgumentError(absl::StrCat("transport address speaks protocol version ",
                                                   header.version, ", want ", kProtocolVersion));
  }
  if (header.kind != static_cast<uint8_t>(want_kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport address is of kind ", header.kind, ", want ", static_cast<int>(want_kind),
                     " (1 loopback, 2 ucx, 3 tcp): both sides must use one kind"));
  }
  const size_t want_bytes = sizeof(header) + header.sockets * sizeof(SocketEntry);
  if (bytes.size() != want_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("transport address with ", header.sockets, " sockets has ",
                                                   bytes.size(), " bytes, want ", want_bytes));
  }
  const bool counts_match = want_kind == AddressKind::kLoopback
                                ? header.sockets == 0
                                : header.sockets >= 1 && header.sockets <= kMaxSocketEntries;
  if (!counts_match || header.endpoint_id == 0) {
    return absl::InvalidArgumentError(absl::StrCat("transport address of kind ", header.kind, " has ",
                                                   header.sockets, " sockets and endpoint id ",
                                                   header.endpoint_id, ": no transport writes that"));
  }
  EndpointAddress address{want_kind, header.endpoint_id, std::vector<SocketEntry>(header.sockets)};
  for (size_t i = 0; i < address.sockets.size(); ++i) {
    SocketEntry& entry = address.sockets[i];
    std::memcpy(&entry, bytes.data() + sizeof(header) + i * sizeof(SocketEntry), sizeof(SocketEntry));
    if (!IsValid(entry)) {
      return absl::InvalidArgumentError(
          absl::StrCat("transport address: socket ", i, " has family ", entry.family, " and port ",
                       entry.port, ", want family 4 or 6, a port, and zeroes where nothing is said"));
    }
  }
  return address;
}

uint64_t RandomId() {
  std::random_device random;
  uint64_t id = 0;
  while (id == 0) id = (static_cast<uint64_t>(random()) << 32) | random();
  return id;
}

}  // namespace aludel
