#include "server/rpc/rpc_fields.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

absl::Status CheckBytes(absl::string_view field, absl::string_view value, size_t max) {
  if (value.size() <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": found ", value.size(), " bytes, want at most ", max));
}

}  // namespace

bool IsVisibleAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isgraph(c); });
}

absl::Status CheckRequestId(absl::string_view id) {
  if (!IsVisibleAscii(id)) {
    return absl::InvalidArgumentError("request_id: found a byte that is no visible ASCII character");
  }
  return CheckBytes("request_id", id, kMaxRequestIdBytes);
}

absl::Status CheckCacheSalt(absl::string_view salt) {
  return CheckBytes("cache_salt", salt, kMaxCacheSaltBytes);
}

}  // namespace aludel
