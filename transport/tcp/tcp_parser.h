#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "transport/stat_counters.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/transport.h"

namespace aludel {

// What the parsers of one transport share. Belongs to the progress thread.
struct TcpInbox {
  MessageHandler* handler;
  StatCounters* counters;
  uint64_t endpoint_id;  // of this transport; a hello must name it
  MessageId next_id = 1;
  std::array<uint8_t, 65536> dropped;  // payloads that the handler does not want are read into this
};

// Makes messages of the bytes of one connection, whatever they are and however they are cut: says where the
// next bytes shall be read to (a payload goes straight into the handler's memory), and takes them from there.
// Until the hello has named this endpoint it has room for the hello's 32 bytes alone. Knows no socket.
class TcpParser {
 public:
  explicit TcpParser(TcpInbox* inbox) : inbox_(inbox) {}
  TcpParser(const TcpParser&) = delete;
  TcpParser& operator=(const TcpParser&) = delete;

  // Never empty; valid until the next call of Received.
  absl::Span<uint8_t> Room();
  // The first `bytes` of Room() have been filled. An error says what is wrong with them: nothing more can be
  // understood, the connection must be closed and End called.
  absl::Status Received(size_t bytes);
  // The connection has ended: a payload under way fails with `reason`.
  void End(const absl::Status& reason);

  // A hello that names this endpoint has come.
  bool greeted() const { return greeted_; }
  // The message whose payload is being read into the handler's memory; 0: none.
  MessageId under_way() const { return target_.empty() ? 0 : id_; }
  // Of the payload, that have not come.
  size_t payload_left() const { return payload_left_; }

 private:
  absl::Status ParseBuffered();
  void Begin(const TcpPrefix& prefix, absl::Span<const uint8_t> header);
  void TakePayload(size_t bytes);

  TcpInbox* const inbox_;
  bool greeted_ = false;
  uint64_t next_number_ = 0;
  // The payload that is being read: into target_, or, where that is empty, nowhere.
  MessageId id_ = 0;
  absl::Span<uint8_t> target_;
  uint64_t payload_left_ = 0;
  // Prefixes and headers, and what was read beyond them.
  static constexpr size_t kBufferBytes = 4096;
  static_assert(kBufferBytes >= kMaxTcpHeadBytes);
  std::array<uint8_t, kBufferBytes> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace aludel
