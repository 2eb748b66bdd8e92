#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "runtime/text/constrain/grammar.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// Integers that a number divides, written as JsonRules writes integers: digit by digit, with what is left of the
// division as the state. Zeros at the end of the divisor are zeros at the end of the number, so only what is before
// them counts against kMaxDivisor. Errors are the budget's; what it is given must outlive it; not thread-safe.
class MultipleRules {
 public:
  using NodeId = GrammarBuilder::NodeId;
  static constexpr int64_t kMaxDivisor = 1024;

  // `divisor` > 0; see CanDivideBy.
  MultipleRules(GrammarBuilder* builder, StepBudget* budget, int64_t divisor, NodeId next);
  static bool CanDivideBy(int64_t divisor);

  // Multiples in [min, max], both within +-JsonRules::kMaxInteger; nothing where there are none.
  absl::StatusOr<std::optional<NodeId>> Between(int64_t min, int64_t max);

 private:
  // Of `digits` digits that are between those of `least` and `greatest` (as far as `low` and `high` say that all
  // before were theirs) and leave nothing behind `rest`. -1: there are none.
  absl::StatusOr<NodeId> Digits(int digits, int64_t rest, bool low, bool high);
  absl::StatusOr<std::optional<NodeId>> Naturals(int64_t min, int64_t max);

  GrammarBuilder* const builder_;
  StepBudget* const budget_;
  const NodeId zero_;  // behind 0
  NodeId end_;         // behind the digits that are divided: the zeros
  int64_t divisor_;    // without the zeros at its end
  int64_t zeros_ = 1;  // as a power of ten
  int64_t least_ = 0;  // of the length being written
  int64_t greatest_ = 0;
  int length_ = 0;
  absl::flat_hash_map<int64_t, NodeId> free_;  // by digits and rest
};

}  // namespace aludel
