#include "runtime/constrain/ordered_json.h"

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

absl::Status CheckLevel(const nlohmann::json& value, int depth) {
  if (!value.is_structured()) return absl::OkStatus();
  if (depth > kMaxDepth) {
    return absl::InvalidArgumentError(absl::StrCat("is nested deeper than ", kMaxDepth, " levels"));
  }
  if (value.is_object() && value.size() > kMaxMembers) {
    return absl::InvalidArgumentError(
        absl::StrCat("holds an object of ", value.size(), " members, want at most ", kMaxMembers));
  }
  for (const nlohmann::json& member : value) ALUDEL_RETURN_IF_ERROR(CheckLevel(member, depth + 1));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckShape(const nlohmann::json& value) { return CheckLevel(value, 1); }

absl::StatusOr<nlohmann::ordered_json> ParseOrdered(absl::string_view text) {
  const auto value = nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError("is no JSON");
  ALUDEL_RETURN_IF_ERROR(CheckShape(value));
  return nlohmann::ordered_json::parse(text.begin(), text.end(), nullptr, false);
}

}  // namespace aludel
