#include "server/observe/process_stats.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace aludel {
namespace {

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  rusage usage = {};
  if (getrusage(RUSAGE_SELF, &usage) == 0)
    stats.cpu_seconds = Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  if (statm >> pages >> resident) stats.resident_bytes = resident * sysconf(_SC_PAGESIZE);
  std::error_code error;
  const std::filesystem::directory_iterator fds("/proc/self/fd", error);
  if (!error) stats.open_fds = std::distance(begin(fds), end(fds));
  return stats;
}

}  // namespace aludel
