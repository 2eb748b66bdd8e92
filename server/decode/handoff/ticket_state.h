#pragma once

#include <cstdint>

namespace aludel {

// The states of a ticket. Every end is final. HANDOFF.md draws it.
enum class TicketState : uint8_t {
  kOpen,
  kCompleted,  // every frame was received and applied
  kAbandoned,  // no longer wanted: the run failed, the client left, the prompt was prefilled here, or an answer that had begun
               // over first parts of frames did without the second ones
  kExpired,    // its deadline passed
  kRefused,    // a frame of it was not what the ticket allows
  kFailed      // a transfer of it broke off
};

constexpr const char* Name(TicketState state) {
  switch (state) {
    case TicketState::kOpen:
      return "open";
    case TicketState::kCompleted:
      return "completed";
    case TicketState::kAbandoned:
      return "abandoned";
    case TicketState::kExpired:
      return "expired";
    case TicketState::kRefused:
      return "refused";
    case TicketState::kFailed:
      return "failed";
  }
  return "unknown";
}

}  // namespace aludel
