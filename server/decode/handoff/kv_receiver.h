#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "server/decode/handoff/frame_drop.h"
#include "server/decode/handoff/handoff_report.h"
#include "server/decode/handoff/ticket_owner.h"
#include "server/decode/handoff/ticket_state.h"
#include "server/handoff/frame_arena.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/frame_ring.h"
#include "server/handoff/handoff_metrics.h"
#include "server/observe/metrics.h"
#include "transport/transport.h"

namespace aludel {

// One handoff that may arrive here.
struct TicketSpec {
  TicketId id = {};
  absl::Time deadline;  // of the receiver's clock
  std::shared_ptr<const CodecSpec> codec;
  uint32_t tokens = 0;  // frames may cover tokens [0, tokens)
  FrameExtent extent;   // payloads go here; room comes back as they are released
  // Set where the extent is smaller than all frames: the weight that may be under way at the beginning
  // (FrameRing::Weight). Frames of such a ticket come in order, without a gap.
  std::optional<uint64_t> credit = {};
  std::shared_ptr<const FrameCipher> cipher;  // set: frames must come encrypted by it
  // The receiver keeps no owner alive: frames for one that has gone are received and released.
  std::weak_ptr<TicketOwner> owner;
};

// Receives frames on a decode server. A message is accepted only for a ticket that is open here, in time, of
// this process's epoch, of the agreed format, within the token range, and while the ticket's own memory has
// room (released frames make room). Everything else is dropped and counted, and nothing is allocated for it.
// Memory of a ticket is quarantined until every transfer into it and every reader of it has ended, however
// the ticket ended.
//
//   Open -> open -> Close: completed (its owner has what it needs) or abandoned (it gave up)
//                -> OnTicketLost: refused or failed (a frame), expired (Reap after the deadline)
//
// Thread-safe. Must outlive its transport, and `metrics` it.
class KvReceiver : public MessageHandler {
 public:
  using Clock = std::function<absl::Time()>;
  KvReceiver(uint64_t epoch, Metrics* metrics, Clock clock);

  using Usage = TicketUsage;

  void Open(TicketSpec spec);
  // `end` is kCompleted or kAbandoned. Later frames of it are late. Unknown tickets give zeros.
  Usage Close(const TicketId& id, TicketState end);
  // What was received so far; nothing for a ticket that is not open.
  std::optional<Usage> UsageOf(const TicketId& id) const;
  // Its frames: those that are whole, and whether another has begun to come. Nothing for a ticket that is not open.
  struct Arrivals {
    uint64_t frames = 0;
    bool more_under_way = false;
  };
  std::optional<Arrivals> ArrivalsOf(const TicketId& id) const;
  // Loses every ticket whose deadline has passed.
  void Reap();

  uint64_t epoch() const { return epoch_; }
  int64_t open_tickets() const;
  // Transfers that are still writing, and frames on their way to an owner.
  int64_t unfinished_payloads() const;

  absl::Span<uint8_t> OnHeader(MessageId id, absl::Span<const uint8_t> header, size_t payload_bytes) override;
  void OnPayload(MessageId id, absl::Status status) override;

 private:
  // Shared by the table, transfers in progress and readers of received payloads: the extent goes with
  // the last.
  struct Ticket {
    explicit Ticket(TicketSpec the_spec) : spec(std::move(the_spec)), ring(std::move(spec.extent)) {}
    // A frame's bytes have been read. On any thread, also after the receiver has gone.
    void Release(const uint8_t* place);

    TicketSpec spec;  // constant from here on
    std::array<uint8_t, 8> artifact = {};
    TicketState state = TicketState::kOpen;
    std::set<uint32_t> sequences;  // seen; a second one of a number is dropped
    Usage usage;

    absl::Mutex ring_mutex;  // held alone, or within the receiver's
    FrameRing ring ABSL_GUARDED_BY(ring_mutex);
    uint64_t granted ABSL_GUARDED_BY(ring_mutex) = 0;  // beyond the first credit
  };
  struct Incoming {
    std::shared_ptr<Ticket> ticket;
    FrameHeader header;
    std::vector<uint8_t> header_bytes;
    absl::Span<uint8_t> payload;
  };
  void CountReceived(const Incoming& frame, Usage* usage) const;
  // Passes a received or lost frame to its owner; without the lock.
  void Deliver(Incoming& frame, bool closed, FrameDrop drop, const absl::Status& status);
  // Decrypts a frame; DataLoss if the ticket's key did not seal it.
  static absl::Status Decrypt(const FrameCipher& cipher, Incoming& frame);
  struct Verdict {
    std::shared_ptr<Ticket> ticket;  // set: the frame is let in, or `lost` ends this ticket
    std::optional<FrameDrop> drop;
    absl::Status lost;
    absl::Span<uint8_t> place = {};  // of a frame that is let in
  };

  Verdict Judge(const FrameHeader& header, size_t payload_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void TellLost(const Ticket& ticket, const absl::Status& reason);
  void CountDrop(FrameDrop drop, int frames = 1);
  void CloseLocked(Ticket& ticket, TicketState end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t epoch_;
  const HandoffMetrics handoffs_;
  const CounterFamily dropped_;        // by FrameDrop
  const CounterFamily ended_tickets_;  // by TicketState
  const Clock clock_;
  mutable absl::Mutex mutex_;
  std::map<TicketId, std::shared_ptr<Ticket>> tickets_ ABSL_GUARDED_BY(mutex_);
  std::map<MessageId, Incoming> incoming_ ABSL_GUARDED_BY(mutex_);  // until the frame was delivered
};

}  // namespace aludel
