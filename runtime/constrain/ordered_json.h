#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// JSON whose members keep their order, as schemas and tools mean it. That library type looks members up one
// by one, so only values of modest shape may become one: at most kMaxMembers members in an object and
// kMaxDepth levels.
inline constexpr size_t kMaxMembers = 1024;
inline constexpr int kMaxDepth = 64;

// InvalidArgument with what is too large.
absl::Status CheckShape(const nlohmann::json& value);
// Text to a value that passed CheckShape.
absl::StatusOr<nlohmann::ordered_json> ParseOrdered(absl::string_view text);

}  // namespace aludel
