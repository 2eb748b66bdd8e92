#pragma once

#include <ctime>

namespace aludel {

// CPU time of this thread: what work costs, however busy the machine is.
inline double ThreadCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace aludel
