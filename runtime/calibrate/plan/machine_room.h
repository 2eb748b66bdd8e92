#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// What a machine has free, and what a process holds, in bytes; nothing where the system does not say.

// Memory that can be had without swapping: MemAvailable, or what the limits of control groups leave where that is less.
std::optional<int64_t> FreeMemory();

// Where `path` is or is going to be made.
std::optional<int64_t> FreeDisk(const std::string& path);

// Of this process: memory that no file backs. State files are mapped, and their pages can be dropped at any time.
int64_t HeldMemory();

// For checks: the value in bytes of a line "NAME:  123 kB" of a /proc file's text.
std::optional<int64_t> KilobyteLine(absl::string_view text, absl::string_view name);
// For checks: what the least of the limits leaves of the groups in `groups`, the text of /proc/self/cgroup, and of those
// above them. Their files are under `root`, of version 1 or 2; no limit: nothing.
std::optional<int64_t> GroupRoom(absl::string_view groups, const std::string& root);

}  // namespace aludel
