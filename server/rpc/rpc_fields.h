#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Checks of fields that gRPC requests of several services have in common. InvalidArgument names the field,
// what was found and what is allowed; it never repeats the value, which goes into logs.

inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxCacheSaltBytes = 64;

// Visible ASCII characters, at most kMaxRequestIdBytes, perhaps none.
absl::Status CheckRequestId(absl::string_view id);
// Any bytes, at most kMaxCacheSaltBytes.
absl::Status CheckCacheSalt(absl::string_view salt);

// What CheckRequestId demands of each character.
bool IsVisibleAscii(absl::string_view text);

}  // namespace aludel
