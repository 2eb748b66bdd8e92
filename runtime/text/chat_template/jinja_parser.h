#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/chat_template/jinja_ast.h"

namespace aludel {

// The tree of a template. Nesting is bounded, so that walking the tree cannot exhaust the stack.
// InvalidArgument names the line and what was found; statements that chat templates do not use (include,
// import, extends, block, do) and unknown filters and tests are such errors.
absl::StatusOr<JinjaBody> ParseJinja(absl::string_view source);

}  // namespace aludel
