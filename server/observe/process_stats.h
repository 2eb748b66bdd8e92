#pragma once

#include <cstdint>

namespace aludel {

// What the kernel says of this process; zeros where /proc is not there.
struct ProcessStats {
  double cpu_seconds = 0;  // user and system
  int64_t resident_bytes = 0;
  int64_t open_fds = 0;
};

ProcessStats ReadProcessStats();

}  // namespace aludel
