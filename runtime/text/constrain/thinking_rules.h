#pragma once

#include "absl/strings/string_view.h"
#include "runtime/text/constrain/grammar.h"

namespace aludel {

// The texts of `answer` with thoughts in front, and at most kMaxThoughtSpace characters of white space in between. Thoughts
// are any bytes up to the first `end`, which is not empty. They begin with `begin`, and may be left out; where that is empty
// they have begun, and must end.
//
// Bytes and not characters, so that thoughts can be ended behind any token.
Grammar WithThoughts(Grammar answer, absl::string_view begin, absl::string_view end);

// The texts of both.
Grammar EitherOf(Grammar one, const Grammar& other);

inline constexpr int kMaxThoughtSpace = 4;

}  // namespace aludel
