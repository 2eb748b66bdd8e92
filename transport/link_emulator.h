#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {

// What becomes of one message on an emulated link.
struct LinkFate {
  enum Kind : uint8_t {
    kWell,
    kLost,      // the sender is told that all is well
    kCorrupt,   // arrives with one bit of `corrupted` other than it was sent
    kDuplicate  // arrives twice
  };
  absl::Time due;  // when it arrives
  Kind kind = kWell;
  std::vector<uint8_t> corrupted;
};

// Emulates one direction of a link: a fixed rate (one message after the other), a delay, and faults that its
// seed repeats. A message is handed on when its last byte would have arrived at the other end. Keeps no clock
// of its own; not thread-safe.
class LinkEmulator {
 public:
  // `stream` tells the links of one transport apart.
  LinkEmulator(const LinkEmulation& options, uint64_t stream);

  // Of the message that is queued now; never due sooner than the message before it.
  LinkFate Admit(absl::Time now, absl::Span<const uint8_t> payload);

 private:
  LinkFate::Kind Draw(size_t payload_bytes);

  const LinkEmulation options_;
  std::mt19937_64 random_;
  absl::Time free_at_ = absl::InfinitePast();
};

}  // namespace aludel
