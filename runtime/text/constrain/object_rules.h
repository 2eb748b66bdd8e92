#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/text/constrain/grammar.h"
#include "runtime/text/constrain/json_rules.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// {"name": value, ...}: listed members in their order, and then others.
struct ObjectPlan {
  using Rule = GrammarBuilder::Rule;
  struct Member {
    std::string name;
    Rule value = -1;
    bool needed = false;
    bool allowed = true;  // false: no other member has its name, either
  };
  // Says of a member that it is there, or that it is not.
  struct Literal {
    size_t member = 0;
    bool present = true;
  };
  static constexpr size_t kMaxClauses = 64;

  std::vector<Member> members;
  std::vector<Rule> others;                   // each a whole member of another name: "name": value
  std::vector<std::vector<Literal>> clauses;  // of each, one must hold; at most kMaxClauses
  int64_t min = 0;   // members; other members count as one, as their names may repeat
  int64_t max = -1;  // -1: any number
};

// Its first node; -1 where no object is left. Errors are the budget's.
absl::StatusOr<GrammarBuilder::NodeId> MakeObject(const ObjectPlan& plan, GrammarBuilder* builder,
                                                  const JsonRules& json, StepBudget* budget,
                                                  GrammarBuilder::NodeId next);

}  // namespace aludel
