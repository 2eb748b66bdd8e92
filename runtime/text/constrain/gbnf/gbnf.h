#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/constrain/grammar.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// Compiles a GBNF grammar (gbnf_tree.h) to one of bytes; its texts are those of the rule "root". InvalidArgument, to be
// read behind "the grammar": a fault of its syntax, left recursion with the rule's name, or no finite text.
// ResourceExhausted where it is too large, or the budget's.
absl::StatusOr<Grammar> CompileGbnf(absl::string_view text, StepBudget* budget);

}  // namespace aludel
