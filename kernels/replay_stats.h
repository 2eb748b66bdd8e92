#pragma once

#include <cstdint>
#include <string>

namespace aludel {

// What became of the work given to Device::Replay on one stream.
struct ReplayStats {
  uint64_t eager = 0;     // was enqueued call by call
  uint64_t captured = 0;  // was remembered, and enqueued as one for the first time
  uint64_t replayed = 0;  // was enqueued as one again
  uint64_t changed = 0;   // of the eager: was not what its key had stood for
  std::string reason;     // why some work stays eager, the latest one; empty where nothing went wrong
};

}  // namespace aludel
