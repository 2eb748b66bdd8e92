#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Numbers and strings as Python writes them, where they stand in a template. Pure.

struct JinjaNumber {
  std::string digits;  // without the underscores that may stand between them
  bool is_float = false;
  size_t end = 0;  // behind it
};
// The decimal integer or float at in[begin], which is a digit.
JinjaNumber ReadJinjaNumber(absl::string_view in, size_t begin);

// The text of the string literal whose opening quote, ' or ", is in[*at]; *at moves behind the closing one. Errors name
// `line`: no closing quote, or an escape that is no character.
absl::StatusOr<std::string> ReadJinjaString(absl::string_view in, int line, size_t* at);

}  // namespace aludel
