#include "runtime/calibrate/plan/machine_room.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace aludel {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int64_t Number(const std::string& path) {
  int64_t value = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadAll(path)), &value) ? value : 0;
}

// Of cgroup v2, as a container sees its own; -1: no limit. Page cache counts as used there, and can be dropped.
int64_t GroupRoom() {
  const std::string root = "/sys/fs/cgroup/";
  const int64_t limit = Number(root + "memory.max");  // "max" is no number
  if (limit <= 0) return -1;
  int64_t dropped = 0;
  for (const absl::string_view line : absl::StrSplit(ReadAll(root + "memory.stat"), '\n')) {
    if (absl::StartsWith(line, "inactive_file ") && !absl::SimpleAtoi(line.substr(14), &dropped)) dropped = 0;
  }
  return std::max<int64_t>(0, limit - Number(root + "memory.current") + dropped);
}

}  // namespace

int64_t KilobyteLine(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name) || !absl::ConsumePrefix(&line, ":")) continue;
    absl::ConsumeSuffix(&line, "kB");
    int64_t value = 0;
    return absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &value) ? value * 1024 : 0;
  }
  return 0;
}

int64_t FreeMemory() {
  const int64_t machine = KilobyteLine(ReadAll("/proc/meminfo"), "MemAvailable");
  const int64_t group = GroupRoom();
  return group >= 0 && (machine == 0 || group < machine) ? group : machine;
}

int64_t FreeDisk(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error);
  while (!at.empty() && !std::filesystem::exists(at, error) && at != at.root_path()) at = at.parent_path();
  const auto space = std::filesystem::space(at, error);
  return error ? 0 : static_cast<int64_t>(space.available);
}

int64_t HeldMemory() { return KilobyteLine(ReadAll("/proc/self/status"), "RssAnon"); }

}  // namespace aludel
