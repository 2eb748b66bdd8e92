#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/constrain/regex/code_points.h"
#include "runtime/text/constrain/regex/regex_tree.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// A regular expression as a graph: a text matches where a way leads to kMatch. Repetitions are written out, so that it
// may be much larger than the expression; the budget bounds it.
struct RegexNfa {
  enum class Kind : uint8_t { kSet, kSplit, kStart, kEnd, kMatch };
  struct Node {
    Kind kind = Kind::kMatch;
    int32_t to = -1;    // kSet: index into sets; kSplit: one way on
    int32_t next = -1;  // where it goes on; kSplit: the other way
  };
  std::vector<Node> nodes;
  std::vector<CodePointSet> sets;
  int32_t start = 0;

  // `anywhere`: a match may begin behind any characters. Errors are the budget's.
  static absl::StatusOr<RegexNfa> Make(const RegexTree& tree, bool anywhere, StepBudget* budget);
};

}  // namespace aludel
