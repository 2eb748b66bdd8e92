#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aludel/v1/handoff.pb.h"
#include "runtime/codec/frame.h"
#include "server/decode/handoff/handoff_spec.h"

namespace aludel {

// What a prefill server is told of a ticket.
struct TicketTerms {
  TicketId id = {};
  uint64_t epoch = 0;
  std::string receiver_address;
  std::string frame_key;  // "": frames come in the clear
  uint64_t window_bytes = 0;
  std::optional<uint64_t> credit_bytes;  // set where the window does not hold all frames
};

// The credit of a ticket whose frames have `window_bytes` for what may come to `bound_bytes`; nothing where all of them
// have room.
std::optional<uint64_t> FirstCredit(uint64_t window_bytes, uint64_t bound_bytes);

v1::RunRequest MakeRunRequest(const HandoffSpec& spec, const TicketTerms& terms, bool frame_times);

}  // namespace aludel
