// The bytes of a data-plane connection, cut where the first byte says. Cutting must not change what is
// understood, every message that the handler accepted must end once, and nothing is read beyond the room that
// was given.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/tcp_parser.h"

namespace aludel {
namespace {

constexpr uint64_t kEndpoint = 0x1122334455667788;

// Takes every second message, of up to so many bytes, and keeps what it saw.
class Handler : public MessageHandler {
 public:
  static constexpr size_t kMaxBytes = 2048;

  absl::Span<uint8_t> OnHeader(MessageId id, absl::Span<const uint8_t> header,
                               size_t payload_bytes) override {
    if (open_ != 0) std::abort();
    seen_.append(header.begin(), header.end());
    seen_ += "|" + std::to_string(payload_bytes) + "|";
    if (payload_bytes == 0 || payload_bytes > kMaxBytes || id % 2 == 0) return {};
    open_ = id;
    payload_.reset(new uint8_t[payload_bytes]);  // its own allocation: AddressSanitizer guards both ends
    bytes_ = payload_bytes;
    return {payload_.get(), payload_bytes};
  }
  void OnPayload(MessageId id, absl::Status status) override {
    if (id != open_) std::abort();
    open_ = 0;
    if (status.ok()) seen_.append(payload_.get(), payload_.get() + bytes_);
    seen_ += status.ok() ? "." : "!";
  }

  std::string seen_;
  MessageId open_ = 0;
  std::unique_ptr<uint8_t[]> payload_;
  size_t bytes_ = 0;
};

std::string Parse(absl::Span<const uint8_t> input, size_t piece) {
  Handler handler;
  StatCounters counters;
  static TcpInbox inbox{.handler = nullptr, .counters = nullptr, .endpoint_id = kEndpoint};
  inbox.handler = &handler;
  inbox.counters = &counters;
  inbox.next_id = 1;
  TcpParser parser(&inbox);
  bool understood = true;
  while (understood && !input.empty()) {
    const absl::Span<uint8_t> room = parser.Room();
    if (room.empty()) std::abort();
    const size_t take = std::min({piece, room.size(), input.size()});
    std::memcpy(room.data(), input.data(), take);
    input.remove_prefix(take);
    understood = parser.Received(take).ok();
  }
  parser.End(absl::UnavailableError("over"));
  if (handler.open_ != 0) std::abort();
  return handler.seen_ + (understood ? "+" : "-");
}

}  // namespace
}  // namespace aludel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  if (size < 1) return 0;
  // A hello and well-formed prefixes are too much to guess: an odd first byte puts the hello in front.
  std::vector<uint8_t> stream;
  if (bytes[0] % 2 == 1) {
    const TcpHead hello = EncodeTcpHead(TcpFrameType::kHello, kEndpoint, {}, 0);
    stream.assign(hello.bytes.begin(), hello.bytes.begin() + hello.size);
  }
  stream.insert(stream.end(), bytes + 1, bytes + size);
  if (stream.empty()) return 0;
  if (Parse(stream, stream.size()) != Parse(stream, 1 + bytes[0] / 2)) std::abort();
  return 0;
}
