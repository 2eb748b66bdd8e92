#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace aludel {

// What one request cost.
struct RequestCost {
  std::string kind;
  size_t bytes = 0;
  double seconds = 0;      // of CPU
  int64_t peak_bytes = 0;  // from operator new (counted_memory.h), over what there was before
  std::string detail;      // for the listing: where the time went, what was answered
  std::string broken;      // the bound that it breaks; "": none

  // A request below this many bytes costs what any request does.
  static constexpr size_t kLeastBytes = 1024;
  double SecondsPerByte() const { return seconds / static_cast<double>(std::max(bytes, kLeastBytes)); }
  double MemoryPerByte() const {
    return static_cast<double>(peak_bytes) / static_cast<double>(std::max(bytes, kLeastBytes));
  }
};

}  // namespace aludel
