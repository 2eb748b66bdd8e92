#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// JSON of a client or of a model, whose members keep their order, as schemas, tools and templates mean it.
//
// ordered_json looks members up one by one, and inserts as slowly. So every untrusted text is parsed here, in
// one pass that never looks a member up: linear in its bytes. With at most kMaxMembers members in an object a
// later look-up compares at most that many keys, 2 us at worst and never more than reading the object cost.
inline constexpr size_t kMaxMembers = 1024;
// Objects and lists in one text: what they cost is memory, 100 bytes for the two bytes of an empty one.
inline constexpr size_t kMaxContainers = 1 << 17;
inline constexpr int kMaxDepth = 64;

// InvalidArgument, to be read behind "the body" or "the schema": no JSON, with the byte of the fault; nested
// deeper than `max_depth` levels; more members or containers than the above; a key twice in one object, of
// which readers disagree which one counts. The last three name the place, e.g. "tools[0].function".
// Cancelled where CheckStop() says so.
absl::StatusOr<nlohmann::ordered_json> ParseOrdered(absl::string_view text, int max_depth = kMaxDepth);

}  // namespace aludel
