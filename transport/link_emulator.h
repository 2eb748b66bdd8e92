#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "transport/stat_counters.h"
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

// Queues `send` as the emulated link treats it: due when it would have arrived, lost, with one bit changed, or
// twice. A Send has payload, done, due, lost and copy (the payload's bytes where they are not the sender's); the
// second of two counts among `unfinished` as well.
template <typename Send>
void QueueOverLink(LinkEmulator* link, absl::Time now, Send send, StatCounters* counters,
                   std::atomic<int>* unfinished, std::deque<Send>* queue) {
  LinkFate fate = link->Admit(now, send.payload);
  send.due = fate.due;
  send.lost = fate.kind == LinkFate::kLost;
  if (fate.kind != LinkFate::kWell) counters->CountEmulatedFault();
  if (fate.kind == LinkFate::kCorrupt) {
    send.copy = std::move(fate.corrupted);
    send.payload = send.copy;
  }
  if (fate.kind != LinkFate::kDuplicate) return queue->push_back(std::move(send));
  // Its payload is its own: the first one's ends with the first `done`.
  Send again = send;
  again.done = [](const absl::Status&) {};
  again.copy.assign(send.payload.begin(), send.payload.end());
  again.payload = again.copy;
  unfinished->fetch_add(1, std::memory_order_relaxed);
  queue->push_back(std::move(send));
  queue->push_back(std::move(again));
}

}  // namespace aludel
