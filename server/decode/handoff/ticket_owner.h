#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/codec/frame.h"

namespace aludel {

// What the receiver tells the owner of a ticket. Called from the transport's progress thread; OnTicketLost
// also from the thread that calls KvReceiver::Reap, OnCreditRaised from any thread that releases a frame. The
// receiver holds no lock meanwhile, so an owner may call it. Must not block. One owner may have several
// tickets, one after the other: the last calls for an earlier one may come late.
class TicketOwner {
 public:
  virtual ~TicketOwner() = default;

  // A whole frame lies in `payload`, which stays until `release` has run (exactly once, on any thread).
  // Nothing beyond the header's form has been checked: checksum and coverage are the owner's.
  virtual void OnFrameReceived(const FrameHeader& header, std::vector<uint8_t> header_bytes,
                               absl::Span<const uint8_t> payload, std::function<void()> release) = 0;
  // A frame of this ticket was refused or lost, or the deadline has passed: the handoff cannot complete.
  // At most once, and the ticket is closed.
  virtual void OnTicketLost(const TicketId& ticket, const absl::Status& reason) = 0;
  // Frames have been released: the credit for all frames since the first is now this much
  // (TicketSpec::credit). At most one call for every quarter of the credit.
  virtual void OnCreditRaised(const TicketId& ticket, uint64_t credit) = 0;
};

}  // namespace aludel
