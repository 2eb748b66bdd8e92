#pragma once

#include <cstdint>

namespace aludel {

// Why a frame is dropped: a label of metrics. The first five leave every ticket open; the others end the
// frame's own.
enum class FrameDrop : uint8_t {
  kMalformed,      // its header is none
  kEpoch,          // of another life of this server
  kUnknownTicket,  // never issued, or closed
  kLate,           // after the deadline, or the ticket ended while it came
  kDuplicate,      // its sequence number was seen
  kLength,         // the payload is not as long as its header says
  kFormat,         // not the ticket's codec or artifact
  kCoverage,       // tokens that the ticket does not have
  kOversize,       // more bytes than its tokens can need
  kGap,            // an earlier frame of a windowed ticket is missing
  kArena,          // the ticket's memory is full
  kTransfer,       // the payload broke off
  kTampered        // not sealed by the ticket's key
};
constexpr uint8_t kFrameDrops = static_cast<uint8_t>(FrameDrop::kTampered) + 1;

constexpr const char* Name(FrameDrop drop) {
  switch (drop) {
    case FrameDrop::kMalformed:
      return "malformed";
    case FrameDrop::kEpoch:
      return "epoch";
    case FrameDrop::kUnknownTicket:
      return "unknown_ticket";
    case FrameDrop::kLate:
      return "late";
    case FrameDrop::kDuplicate:
      return "duplicate";
    case FrameDrop::kLength:
      return "length";
    case FrameDrop::kFormat:
      return "format";
    case FrameDrop::kCoverage:
      return "coverage";
    case FrameDrop::kOversize:
      return "oversize";
    case FrameDrop::kGap:
      return "gap";
    case FrameDrop::kArena:
      return "arena";
    case FrameDrop::kTransfer:
      return "transfer";
    case FrameDrop::kTampered:
      return "tampered";
  }
  return "unknown";
}

}  // namespace aludel
