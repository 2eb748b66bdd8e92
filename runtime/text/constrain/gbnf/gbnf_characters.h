#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/text/constrain/regex/code_points.h"
#include "runtime/text/constrain/step_budget.h"
#include "runtime/text/constrain/text_cursor.h"

namespace aludel {

// The characters of a grammar, as ParseGbnf documents them, errors included. The cursor is behind the quote or the
// bracket, which is at byte `begin`, and comes to be behind the one that ends it.
absl::StatusOr<std::string> ReadGbnfLiteral(TextCursor* cursor, size_t begin, StepBudget* budget);
absl::StatusOr<CodePointSet> ReadGbnfClass(TextCursor* cursor, size_t begin, StepBudget* budget);

}  // namespace aludel
