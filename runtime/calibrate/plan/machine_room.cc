#include "runtime/calibrate/plan/machine_room.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace aludel {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::optional<int64_t> Number(const std::string& path) {
  const std::string text = ReadAll(path);
  int64_t value = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &value)) return std::nullopt;
  return value;
}

// What a limit leaves, "max" being none. Page cache counts as used there, and can be dropped.
std::optional<int64_t> RoomIn(const std::string& group, bool unified) {
  const std::optional<int64_t> limit = Number(group + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  if (!limit.has_value()) return std::nullopt;
  const int64_t used = Number(group + (unified ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  const absl::string_view cache = unified ? "inactive_file " : "total_inactive_file ";
  int64_t dropped = 0;
  const std::string statistics = ReadAll(group + "/memory.stat");
  for (absl::string_view line : absl::StrSplit(statistics, '\n')) {
    if (absl::ConsumePrefix(&line, cache) && !absl::SimpleAtoi(line, &dropped)) dropped = 0;
  }
  return std::max<int64_t>(0, *limit - used + dropped);
}

std::optional<int64_t> Less(std::optional<int64_t> a, std::optional<int64_t> b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() ? a : b;
  return std::min(*a, *b);
}

}  // namespace

std::optional<int64_t> GroupRoom(absl::string_view groups, const std::string& root) {
  std::optional<int64_t> room;
  for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool unified = parts[1].empty();  // version 2
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (!unified && std::count(controllers.begin(), controllers.end(), "memory") == 0) continue;
    const std::string top = unified ? root : root + "/memory";
    std::filesystem::path at = parts[2];
    for (; at.has_relative_path(); at = at.parent_path())
      room = Less(room, RoomIn(top + at.string(), unified));
    room = Less(room, RoomIn(top, unified));
  }
  return room;
}

std::optional<int64_t> KilobyteLine(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name) || !absl::ConsumePrefix(&line, ":")) continue;
    absl::ConsumeSuffix(&line, "kB");
    int64_t value = 0;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &value)) return std::nullopt;
    return value * 1024;
  }
  return std::nullopt;
}

std::optional<int64_t> FreeMemory() {
  return Less(KilobyteLine(ReadAll("/proc/meminfo"), "MemAvailable"),
              GroupRoom(ReadAll("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

std::optional<int64_t> FreeDisk(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error);
  while (!at.empty() && !std::filesystem::exists(at, error) && at != at.root_path()) at = at.parent_path();
  const auto space = std::filesystem::space(at, error);
  if (error) return std::nullopt;
  return static_cast<int64_t>(space.available);
}

int64_t HeldMemory() { return KilobyteLine(ReadAll("/proc/self/status"), "RssAnon").value_or(0); }

}  // namespace aludel
