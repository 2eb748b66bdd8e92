#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/text/chat_template/jinja_ast.h"
#include "runtime/text/chat_template/jinja_value.h"

namespace aludel {

// The text of a template for `context`. Steps, text and recursion are bounded. InvalidArgument carries the
// text of raise_exception as it is, or the line of the fault.
absl::StatusOr<std::string> RenderJinja(const JinjaBody& body, const JinjaValue::Dict& context);

}  // namespace aludel
