#pragma once

#include "absl/strings/string_view.h"

namespace aludel {

// The regular expression, anchored at both ends, of JSON Schema's "format" of this name; empty where the name is
// unknown, which refuses nothing.
absl::string_view FormatPattern(absl::string_view format);

}  // namespace aludel
