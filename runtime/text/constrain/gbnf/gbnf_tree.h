#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/constrain/regex/code_points.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// One side of a rule, at most kMaxGbnfDepth levels deep.
struct GbnfNode {
  enum class Kind : uint8_t { kText, kSet, kRule, kSequence, kAlternatives, kRepeat };
  Kind kind = Kind::kSequence;
  std::string text;             // kText: UTF-8
  CodePointSet set;             // kSet: one character of it
  int32_t rule = -1;            // kRule: by number
  std::vector<GbnfNode> parts;  // kSequence, kAlternatives; kRepeat: one
  int32_t min = 0;              // kRepeat
  int32_t max = -1;             // kRepeat; -1: any number of times
};

// A grammar, read: every rule that is used is defined, and one is called "root".
struct GbnfGrammar {
  std::vector<std::string> names;
  std::vector<GbnfNode> rules;  // by number
  int32_t root = -1;
};

inline constexpr int kMaxGbnfDepth = 100;
inline constexpr int32_t kMaxGbnfRepeat = 1 << 16;

// Reads llama.cpp's GBNF, which is also the EBNF of XGrammar as far as both agree: name ::= alternatives, with
// "literals", [classes], a dot for any character, names, groups, * + ? {m} {m,} {m,n}, | and comments behind #. A rule
// may go on in the next line.
//
// InvalidArgument, to be read behind "the grammar": what is wrong and at which byte. The budget's errors.
absl::StatusOr<GbnfGrammar> ParseGbnf(absl::string_view text, StepBudget* budget);

}  // namespace aludel
