#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Checks of fields that gRPC requests of several services have in common. InvalidArgument names the field,
// what was found and what is allowed; it never repeats the value, which goes into logs.

inline constexpr size_t kMaxRequestIdBytes = 128;
inline constexpr size_t kMaxCacheSaltBytes = 64;
// Of a name that a caller gave, in an error or a log line.
inline constexpr size_t kMaxQuotedBytes = 512;

// Visible ASCII characters, at most kMaxRequestIdBytes, perhaps none.
absl::Status CheckRequestId(absl::string_view id);
// Any bytes, at most kMaxCacheSaltBytes.
absl::Status CheckCacheSalt(absl::string_view salt);

// The beginning of `text`, as much as an error may repeat.
inline absl::string_view Quotable(absl::string_view text) { return text.substr(0, kMaxQuotedBytes); }

// What CheckRequestId demands of each character.
bool IsVisibleAscii(absl::string_view text);

}  // namespace aludel
