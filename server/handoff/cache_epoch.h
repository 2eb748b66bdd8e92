#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Tells what was cached before a reset from what is cached since, by the salt that cached prefixes are found by: what was
// cached before is found no more, and goes when its room is wanted. Work that was under way
// at the reset caches under the old one. Thread-safe.
class CacheEpoch {
 public:
  void Reset() { epoch_.fetch_add(1); }
  // What to cache under for a request's own salt, now.
  std::string Salt(absl::string_view salt) const {
    // Of one length, so that no two salts become one.
    return absl::StrCat(salt, absl::Hex(epoch_.load(), absl::kZeroPad16));
  }

 private:
  std::atomic<uint64_t> epoch_{0};
};

}  // namespace aludel
