#pragma once

#include <cstdint>

namespace aludel {

struct TransportStats {
  uint64_t messages_sent = 0;
  uint64_t bytes_sent = 0;
  uint64_t messages_received = 0;
  uint64_t bytes_received = 0;
  uint64_t messages_dropped = 0;  // refused by the handler or while closing, or malformed
  uint64_t send_failures = 0;
  uint64_t open_channels = 0;
  uint64_t emulated_faults = 0;  // messages lost, corrupted or doubled on purpose
};

}  // namespace aludel
