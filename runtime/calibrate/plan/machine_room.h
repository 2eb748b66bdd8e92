#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace aludel {

// What a machine has free, and what a process holds, in bytes; 0 where the system does not say.

// Memory that can be had without swapping: MemAvailable, or what the control group's limit leaves where that is less.
int64_t FreeMemory();

// Where `path` is or is going to be made.
int64_t FreeDisk(const std::string& path);

// Of this process: memory that no file backs. State files are mapped, and their pages can be dropped at any time.
int64_t HeldMemory();

// For checks: the value in bytes of a line "NAME:  123 kB" of a /proc file's text; 0 where there is none.
int64_t KilobyteLine(absl::string_view text, absl::string_view name);

}  // namespace aludel
