#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/constrain/regex/code_points.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// A regular expression, read. A tree of at most kMaxRegexDepth levels.
struct RegexTree {
  enum class Kind : uint8_t { kSet, kSequence, kAlternatives, kRepeat, kStart, kEnd };
  Kind kind = Kind::kSequence;
  CodePointSet set;              // kSet: one character of it
  std::vector<RegexTree> parts;  // kSequence, kAlternatives; kRepeat: one
  int32_t min = 0;               // kRepeat
  int32_t max = -1;              // kRepeat; -1: any number of times
};

inline constexpr size_t kMaxPatternBytes = 16 << 10;
inline constexpr int kMaxRegexDepth = 100;
inline constexpr int32_t kMaxRegexRepeat = 1 << 16;

// Reads the regular part of ECMA-262's syntax: characters, the dot, classes, \d \w \s and their opposites, \t \n \v \f
// \r \0 \cX \xHH \uHHHH \u{H}, \p{...} and \P{...} (as far as ICU knows the property), groups of every kind, |,
// quantifiers (lazy ones, too: the language is the same), ^ and $. Lenient where a browser is without the flag u: a
// brace that begins no quantifier is itself.
//
// InvalidArgument, to be read behind "the pattern": what is wrong and at which byte. Lookaround, backreferences, word
// boundaries and flags are named. ResourceExhausted and Cancelled are the budget's.
absl::StatusOr<RegexTree> ParseRegex(absl::string_view pattern, StepBudget* budget);

}  // namespace aludel
