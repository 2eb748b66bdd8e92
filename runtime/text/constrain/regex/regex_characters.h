#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "runtime/text/constrain/regex/code_points.h"
#include "runtime/text/constrain/step_budget.h"
#include "runtime/text/constrain/text_cursor.h"

namespace aludel {

// What stands for one character in a pattern: escapes and classes, as ParseRegex documents them, errors included.

// The cursor is at the backslash. One character, or nothing where the escape stands for several, which `set` then is.
absl::StatusOr<std::optional<uint32_t>> ReadEscape(TextCursor* cursor, bool in_class, StepBudget* budget,
                                                   CodePointSet* set);
// Behind the bracket, which is at byte `begin`.
absl::StatusOr<CodePointSet> ReadClass(TextCursor* cursor, size_t begin, StepBudget* budget);

}  // namespace aludel
