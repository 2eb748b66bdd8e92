#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "server/decode/stages.h"

namespace aludel {

// What one ticket has received.
struct TicketUsage {
  uint64_t frames = 0;
  uint64_t bytes = 0;        // headers included, and without second parts of frames (CodecSpec::base_planes)
  uint64_t first_bytes = 0;  // of the first frame received
  absl::Time first_received;
  absl::Time last_received;    // as bytes
  uint64_t upgrade_bytes = 0;  // of those second parts
};

// What one handoff has come to so far.
struct HandoffReport {
  TicketUsage usage;  // of the last ticket when it was closed
  std::optional<ProducerSeconds> producer;
  int64_t cached_tokens = 0;  // of the prompt, that the prefill server computed nothing for; with `producer`
  int64_t stored_tokens = 0;  // of the prompt, whose codes it had stored; likewise
  absl::Time begin = absl::InfiniteFuture();  // MonotonicNow(); of the first attempt
  absl::Time end = absl::InfiniteFuture();
  int attempts = 0;
  bool asked_server = false;  // not of this server's own store alone
};

}  // namespace aludel
