#include "kernels/core_list.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace aludel {
namespace {

constexpr int kMaxCore = CPU_SETSIZE - 1;

// "3" or "0-3".
bool ParseRange(absl::string_view text, int* first, int* last) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  return ends.size() <= 2 && absl::SimpleAtoi(ends.front(), first) && absl::SimpleAtoi(ends.back(), last) &&
         *first >= 0 && *first <= *last && *last <= kMaxCore;
}

// The words of a small file's first line; none if it cannot be read.
std::vector<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return absl::StrSplit(line, ' ', absl::SkipEmpty());
}

// Quota over period, of a number each; 0 where there is no limit or no such file.
double Share(const std::string& quota, const std::string& period) {
  double time = 0, of = 0;
  return absl::SimpleAtod(quota, &time) && absl::SimpleAtod(period, &of) && time > 0 && of > 0 ? time / of
                                                                                               : 0;
}

// Of one group: version 2 says "150000 100000" or "max 100000" in one file, version 1 has two files.
double ShareOfGroup(const std::string& directory) {
  const std::vector<std::string> both = FirstLine(directory + "/cpu.max");
  if (both.size() == 2) return Share(both[0], both[1]);
  const std::vector<std::string> quota = FirstLine(directory + "/cpu.cfs_quota_us");
  const std::vector<std::string> period = FirstLine(directory + "/cpu.cfs_period_us");
  return quota.size() == 1 && period.size() == 1 ? Share(quota[0], period[0]) : 0;
}

}  // namespace

absl::StatusOr<std::vector<int>> ParseCoreList(absl::string_view text) {
  std::vector<int> cores;
  if (text.empty()) return cores;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int first = 0, last = 0;
    if (!ParseRange(part, &first, &last)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cores \"", text, "\": found \"", part, "\", want numbers and ranges like 0-3,8"));
    }
    for (int core = first; core <= last; ++core) {
      if (std::find(cores.begin(), cores.end(), core) != cores.end()) {
        return absl::InvalidArgumentError(absl::StrCat("cores \"", text, "\" name core ", core, " twice"));
      }
      cores.push_back(core);
    }
  }
  return cores;
}

std::vector<int> AllowedCores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int core = 0; core <= kMaxCore; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

absl::Status KeepOnCores(absl::Span<const int> cores) {
  const std::vector<int> allowed = AllowedCores();
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  // The kernel itself leaves out in silence what does not exist, as long as something is left.
  const bool all = std::all_of(cores.begin(), cores.end(), [&](int core) {
    return std::find(allowed.begin(), allowed.end(), core) != allowed.end();
  });
  if (all && ::sched_setaffinity(0, sizeof(set), &set) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("cores ", absl::StrJoin(cores, ","),
                                                    ": this process may run on ", absl::StrJoin(allowed, ","),
                                                    all ? absl::StrCat(", ", std::strerror(errno)) : ""));
}

int CoresOfQuota(const std::string& groups, const std::string& root) {
  double least = 0;
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {
    // "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    const bool first_version = std::find(controllers.begin(), controllers.end(), "cpu") != controllers.end();
    if (!first_version && !fields[1].empty()) continue;
    const std::string mount = first_version ? root + "/cpu" : root;
    // Every group above limits, too; inside a container they may not be there to see.
    std::string path = fields[2];
    while (true) {
      const double share = ShareOfGroup(mount + path);
      if (share > 0) least = least == 0 ? share : std::min(least, share);
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return least == 0 ? 0 : std::max(1, static_cast<int>(least));
}

}  // namespace aludel
