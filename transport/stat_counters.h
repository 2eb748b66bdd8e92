#pragma once

#include <atomic>
#include <cstdint>

#include "transport/transport.h"
#include "transport/transport_stats.h"

namespace aludel {

// The counters behind Transport::stats(). Any thread counts, any thread reads; each counter is exact, a
// snapshot of all of them is not taken at one instant.
struct StatCounters {
  std::atomic<uint64_t> messages_sent{0};
  std::atomic<uint64_t> bytes_sent{0};
  std::atomic<uint64_t> messages_received{0};
  std::atomic<uint64_t> bytes_received{0};
  std::atomic<uint64_t> messages_dropped{0};
  std::atomic<uint64_t> send_failures{0};
  std::atomic<uint64_t> open_channels{0};
  std::atomic<uint64_t> emulated_faults{0};

  TransportStats Snapshot() const {
    return {.messages_sent = messages_sent.load(std::memory_order_relaxed),
            .bytes_sent = bytes_sent.load(std::memory_order_relaxed),
            .messages_received = messages_received.load(std::memory_order_relaxed),
            .bytes_received = bytes_received.load(std::memory_order_relaxed),
            .messages_dropped = messages_dropped.load(std::memory_order_relaxed),
            .send_failures = send_failures.load(std::memory_order_relaxed),
            .open_channels = open_channels.load(std::memory_order_relaxed),
            .emulated_faults = emulated_faults.load(std::memory_order_relaxed)};
  }

  void CountSend(const absl::Status& status, size_t payload_bytes) {
    if (!status.ok()) {
      send_failures.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    messages_sent.fetch_add(1, std::memory_order_relaxed);
    bytes_sent.fetch_add(payload_bytes, std::memory_order_relaxed);
  }
  void CountReceive(size_t payload_bytes) {
    messages_received.fetch_add(1, std::memory_order_relaxed);
    bytes_received.fetch_add(payload_bytes, std::memory_order_relaxed);
  }
  void CountEmulatedFault() { emulated_faults.fetch_add(1, std::memory_order_relaxed); }
  void CountDrop() { messages_dropped.fetch_add(1, std::memory_order_relaxed); }
};

}  // namespace aludel
