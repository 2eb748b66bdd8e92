#pragma once

#include <cstdint>
#include <string>

namespace aludel {

// What became of the work given to Repeat on one stream.
struct RepeatStats {
  uint64_t plain = 0;     // was enqueued call by call
  uint64_t captured = 0;  // was remembered, and enqueued as one for the first time
  uint64_t replayed = 0;  // was enqueued as one again
  uint64_t broken = 0;    // of the plain: had changed under its key
  std::string trouble;    // why some work stays plain, the latest reason; empty where nothing went wrong
};

}  // namespace aludel
