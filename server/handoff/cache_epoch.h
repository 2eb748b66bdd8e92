#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
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
  // The request's own salt, of what is cached under `cached`; nothing where that is found no more.
  std::optional<absl::string_view> OwnSalt(absl::string_view cached) const {
    if (cached.size() < kHexDigits) return std::nullopt;
    const absl::string_view own = cached.substr(0, cached.size() - kHexDigits);
    if (Salt(own) != cached) return std::nullopt;
    return own;
  }

 private:
  static constexpr size_t kHexDigits = 16;

  std::atomic<uint64_t> epoch_{0};
};

}  // namespace aludel
