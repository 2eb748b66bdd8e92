#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/text/constrain/grammar.h"
#include "runtime/text/constrain/json_rules.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// [item, item, ...], where JsonRules::Array, of items that are all alike, does not do. Numbers of items are between a
// least and a most (-1: any number). Returns the first node. Errors are the budget's; what it is given must outlive it;
// not thread-safe.
class ArrayRules {
 public:
  using NodeId = GrammarBuilder::NodeId;
  using Rule = GrammarBuilder::Rule;

  ArrayRules(GrammarBuilder* builder, const JsonRules* json, StepBudget* budget)
      : builder_(*builder), json_(*json), budget_(*budget) {}

  // Items of `listed` in their order, and behind all of them any of `more`, or none where that is -1; `most` is not
  // less than listed.size().
  NodeId Listed(absl::Span<const Rule> listed, Rule more, int64_t least, int64_t most);

  // Items out of `values` (at most kMaxUniqueValues, no two alike, least of them at least), none of them twice. Which
  // ones were used is the state: two to the power of their number at worst, which the budget bounds.
  static constexpr size_t kMaxUniqueValues = 64;
  absl::StatusOr<NodeId> Unique(const std::vector<std::string>& values, int64_t least, int64_t most);

  // Items of two kinds, of which one is counted. A rule of -1: there are none of that kind.
  struct Counted {
    Rule counted = -1;
    Rule other = -1;
    int64_t least = 0;  // of all
    int64_t most = -1;
    int64_t counted_least = 0;
    int64_t counted_most = -1;  // else no item may be of both kinds
  };
  // -1 where no array is left.
  absl::StatusOr<NodeId> WithCounted(const Counted& items);

 private:
  NodeId Comma(NodeId item) { return builder_.Literal(",", json_.Space(item)); }
  NodeId Close() { return builder_.Literal("]", builder_.ReturnNode()); }
  NodeId Open(NodeId inside) { return builder_.Literal("[", json_.Space(inside)); }
  // In place `count` of an array: one of `items`, or its end where it may be there; -1 where there is neither.
  NodeId Place(int64_t count, const std::vector<NodeId>& items, bool may_close, NodeId close, NodeId spaced);

  GrammarBuilder& builder_;
  const JsonRules& json_;
  StepBudget& budget_;
};

}  // namespace aludel
