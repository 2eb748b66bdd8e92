#include "runtime/text/constrain/ordered_json.h"

#include "absl/strings/str_cat.h"
#include "runtime/files/json_builder.h"

namespace aludel {

using nlohmann::ordered_json;

absl::StatusOr<ordered_json> ParseOrdered(absl::string_view text, int max_depth) {
  ordered_json value;
  JsonFault fault;
  if (JsonBuilder<ordered_json>::Parse(text, {max_depth, kMaxMembers, kMaxContainers}, &value, &fault)) {
    return value;
  }
  const std::string place = fault.place.empty() ? "" : absl::StrCat(" at ", fault.place);
  switch (fault.kind) {
    case JsonFault::Kind::kNumber:
      return absl::InvalidArgumentError("holds a number that is too large");
    case JsonFault::Kind::kDepth:
      return absl::InvalidArgumentError(absl::StrCat("is nested deeper than ", max_depth, " levels"));
    case JsonFault::Kind::kMembers:
      return absl::InvalidArgumentError(
          absl::StrCat("holds an object of more than ", kMaxMembers, " members", place));
    case JsonFault::Kind::kContainers:
      return absl::InvalidArgumentError(
          absl::StrCat("holds more than ", kMaxContainers, " objects and lists", place));
    case JsonFault::Kind::kDuplicate:
      return absl::InvalidArgumentError(
          absl::StrCat("holds the key \"", fault.key, "\" twice in one object", place));
    case JsonFault::Kind::kStopped:
      return CheckStop();
    default:
      return absl::InvalidArgumentError(absl::StrCat("is no JSON; the fault is at byte ", fault.byte));
  }
}

}  // namespace aludel
