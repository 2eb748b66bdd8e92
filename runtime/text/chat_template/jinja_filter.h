#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_value.h"

namespace aludel {

// What the files that implement filters share; templates reach them through jinja_builtins.h.

using JinjaFilter = absl::StatusOr<JinjaValue> (*)(const JinjaValue& operand, const JinjaArguments& arguments,
                                                   JinjaBudget* budget);

// Filters of whole sequences: length, order, choice and mapping. Null for other names.
JinjaFilter FindSequenceFilter(absl::string_view name);

// A string that is charged to the budget.
absl::StatusOr<JinjaValue> MakeJinjaText(std::string text, JinjaBudget* budget);

// A bound argument that is given and true.
inline bool JinjaFlag(const JinjaValue* value) { return value != nullptr && value->Truth(); }

}  // namespace aludel
