#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/transport_stats.h"

namespace aludel {

// Moves messages between processes: a small header and a payload of any size, both opaque here. Which
// messages are allowed, and whether their bytes are sane, is for the receiver to check (see
// server/decode/handoff/kv_receiver.h). What travels, and what the two sides promise each other, is in PROTOCOL.md.

// Memory that the transport can send from and receive into without a copy. Owned by its holder; it must not
// be freed while an operation on it is unfinished (Channel::Send's `done`, MessageHandler::OnPayload).
class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual absl::Span<uint8_t> bytes() = 0;
};

// Identifies one incoming message between OnHeader and OnPayload. Unique within a Transport.
using MessageId = uint64_t;

// The receiving side. Both calls come from the transport's progress thread, must not block, and must not call
// back into Channel::Close or destroy the Transport.
class MessageHandler {
 public:
  virtual ~MessageHandler() = default;

  // A message has arrived. Returns where its payload shall be written: exactly `payload_bytes` long, alive
  // until OnPayload(id) has run; or an empty span to drop the message (nothing was allocated for it,
  // OnPayload is not called). A message without payload returns an empty span too and ends here. `header`
  // dies with the call.
  virtual absl::Span<uint8_t> OnHeader(MessageId id, absl::Span<const uint8_t> header,
                                       size_t payload_bytes) = 0;

  // The payload lies where OnHeader said, or the transfer failed and the memory holds garbage. Exactly once
  // for every message that OnHeader accepted; from then on the memory belongs to the handler again.
  virtual void OnPayload(MessageId id, absl::Status status) = 0;
};

// A connection to one peer. Thread-safe. Messages on one channel are delivered in the order of their Send
// calls as far as OnHeader is concerned; payloads may complete in any order.
class Channel {
 public:
  // Closes at once: unfinished sends complete with Cancelled before the destructor returns. Messages
  // whose `done` said Ok may still be lost. Not from a callback of the transport, which would wait for
  // itself, and not during a Send.
  virtual ~Channel() = default;

  // Queues one message. `header` is copied (at most kMaxHeaderBytes); `payload` must live until `done`.
  // `done` is called exactly once, from the progress thread or from inside Send: Ok when the payload may be
  // reused (on its way, not surely delivered), Unavailable when the peer is gone,
  // ResourceExhausted when the bounded send queue is full, Cancelled when the channel was closed,
  // InvalidArgument for a header that is too long. `done` must not block; it may call Send.
  virtual void Send(absl::Span<const uint8_t> header, absl::Span<const uint8_t> payload,
                    std::function<void(absl::Status)> done) = 0;

  // Bytes that have left so far, of unfinished sends, too, where the transport can tell; 0 elsewhere. From any thread.
  virtual uint64_t written() const { return 0; }

  // False once the peer is known to be gone. A hung peer is not noticed here: deadlines are the caller's.
  virtual bool healthy() const = 0;

  // Transports and devices in use ("tcp/lo", "posix/memory cma/memory"), for logs and metrics.
  virtual std::string lanes() const = 0;
};

inline constexpr size_t kMaxHeaderBytes = 256;

// One endpoint of the data plane: receives from every peer that knows its address, and connects to peers.
// Owns one progress thread that sleeps when there is nothing to do. Thread-safe. Channels and regions must be
// destroyed before their Transport.
class Transport {
 public:
  virtual ~Transport() = default;

  // What a peer passes to Connect; empty where nothing is accepted. Opaque bytes, meant to travel over the
  // control plane: that a peer knows them is what lets it connect.
  virtual std::string address() const = 0;

  // Connects and proves it: returns once a round trip has gone through (wire-up is paid here, not by the
  // first frame), or DeadlineExceeded / Unavailable / InvalidArgument (bytes that are no address).
  virtual absl::StatusOr<std::unique_ptr<Channel>> Connect(absl::string_view address,
                                                           absl::Duration timeout) = 0;

  virtual absl::StatusOr<std::unique_ptr<MemoryRegion>> Allocate(size_t bytes) = 0;

  virtual TransportStats stats() const = 0;

  // Whether it could send from a GPU's memory and receive into it. Frames are in host memory all the same:
  // their checksums and ciphers are made there.
  virtual bool reaches_gpu_memory() const { return false; }

  // Posts a ping to the progress thread and returns how long the last one has been unanswered; zero if it was
  // answered. Call it regularly, from one thread.
  virtual absl::Duration ProgressSilence() = 0;
};

}  // namespace aludel
