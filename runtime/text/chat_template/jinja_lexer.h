#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

struct JinjaToken {
  enum class Kind {
    kText,
    kOutputBegin,
    kOutputEnd,
    kTagBegin,
    kTagEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // unescaped where it is a string
  int line = 0;
};

// Cuts a template into tokens with the white-space rules of HuggingFace's environment: trim_blocks (a newline
// after a tag goes), lstrip_blocks (blanks before a tag at the start of a line go), "-" and "+" signs, one
// trailing newline of the template dropped, comments and raw blocks resolved. InvalidArgument names the line.
absl::StatusOr<std::vector<JinjaToken>> LexJinja(absl::string_view source);

absl::Status JinjaError(int line, absl::string_view message);

}  // namespace aludel
