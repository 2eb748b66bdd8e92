#include "runtime/text/constrain/gbnf/gbnf.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/gbnf/gbnf_tree.h"
#include "runtime/text/constrain/regex/character_rules.h"

namespace aludel {
namespace {

using Kind = GbnfNode::Kind;
using NodeId = GrammarBuilder::NodeId;
using Rule = GrammarBuilder::Rule;

// Which rules may be empty, and which begin with themselves: an automaton that reads from left to right would enter
// those for ever.
class LeftRecursion {
 public:
  LeftRecursion(const GbnfGrammar* grammar, StepBudget* budget)
      : grammar_(*grammar), budget_(budget), empty_(grammar->rules.size(), false) {}

  absl::Status Check() {
    // A rule is empty at most once, and each round but the last finds one.
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t id = 0; id < grammar_.rules.size(); ++id) {
        if (empty_[id]) continue;
        ALUDEL_ASSIGN_OR_RETURN(empty_[id], MayBeEmpty(grammar_.rules[id]));
        changed = changed || empty_[id];
      }
    }
    first_.resize(grammar_.rules.size());
    for (size_t id = 0; id < grammar_.rules.size(); ++id) {
      ALUDEL_RETURN_IF_ERROR(FindFirst(grammar_.rules[id], &first_[id]).status());
    }
    return FindCycle();
  }

 private:
  absl::StatusOr<bool> MayBeEmpty(const GbnfNode& node) {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
    switch (node.kind) {
      case Kind::kText:
        return node.text.empty();
      case Kind::kSet:
        return false;
      case Kind::kRule:
        return static_cast<bool>(empty_[node.rule]);
      case Kind::kRepeat:
        return node.min == 0 ? true : MayBeEmpty(node.parts.front());
      default:
        break;
    }
    const bool all = node.kind == Kind::kSequence;
    for (const GbnfNode& part : node.parts) {
      ALUDEL_ASSIGN_OR_RETURN(const bool empty, MayBeEmpty(part));
      if (empty != all) return empty;
    }
    return all;
  }

  // Adds the rules with which a node may begin; whether it may be empty.
  absl::StatusOr<bool> FindFirst(const GbnfNode& node, std::vector<int32_t>* rules) {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
    if (node.kind == Kind::kRule) rules->push_back(node.rule);
    if (node.parts.empty()) return MayBeEmpty(node);
    if (node.kind == Kind::kRepeat) {
      if (node.max == 0) return true;
      ALUDEL_ASSIGN_OR_RETURN(const bool empty, FindFirst(node.parts.front(), rules));
      return empty || node.min == 0;
    }
    bool any = false;
    for (const GbnfNode& part : node.parts) {
      ALUDEL_ASSIGN_OR_RETURN(const bool empty, FindFirst(part, rules));
      if (node.kind == Kind::kSequence && !empty) return false;
      any = any || empty;
    }
    return node.kind == Kind::kSequence || any;
  }

  absl::Status FindCycle() const {
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> state(first_.size(), kNew);
    for (size_t root = 0; root < first_.size(); ++root) {
      if (state[root] != kNew) continue;
      std::vector<std::pair<int32_t, size_t>> path = {{static_cast<int32_t>(root), 0}};
      state[root] = kOpen;
      while (!path.empty()) {
        auto& [id, step] = path.back();
        if (step == first_[id].size()) {
          state[id] = kDone;
          path.pop_back();
          continue;
        }
        const int32_t to = first_[id][step++];
        if (state[to] == kOpen) {
          return absl::InvalidArgumentError(absl::StrCat("is left-recursive: the rule '",
                                                         grammar_.names[to].substr(0, 64),
                                                         "' may begin with itself, which is not supported"));
        }
        if (state[to] == kNew) {
          state[to] = kOpen;
          path.emplace_back(to, 0);
        }
      }
    }
    return absl::OkStatus();
  }

  const GbnfGrammar& grammar_;
  StepBudget* const budget_;
  std::vector<bool> empty_;                  // by rule
  std::vector<std::vector<int32_t>> first_;  // by rule
};

class GbnfCompiler {
 public:
  GbnfCompiler(const GbnfGrammar* grammar, StepBudget* budget)
      : grammar_(*grammar), budget_(budget), characters_(&builder_, budget) {}

  absl::StatusOr<Grammar> Compile() {
    for (size_t id = 0; id < grammar_.rules.size(); ++id) rules_.push_back(builder_.NewRule());
    for (size_t id = 0; id < grammar_.rules.size(); ++id) {
      ALUDEL_ASSIGN_OR_RETURN(const NodeId start, Add(grammar_.rules[id], builder_.ReturnNode()));
      builder_.Define(rules_[id], start);
    }
    return builder_.Finish(rules_[grammar_.root]);
  }

 private:
  absl::StatusOr<NodeId> Add(const GbnfNode& node, NodeId next) {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(4 + static_cast<int64_t>(node.text.size())));
    switch (node.kind) {
      case Kind::kText:
        return builder_.Literal(node.text, next);
      case Kind::kSet:
        return characters_.Character(node.set, CharacterRules::Writing::kPlain, next);
      case Kind::kRule:
        return builder_.Call(rules_[node.rule], next);
      case Kind::kAlternatives:
        return Alternatives(node, next);
      case Kind::kSequence:
        for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part) {
          ALUDEL_ASSIGN_OR_RETURN(next, Add(*part, next));
        }
        return next;
      case Kind::kRepeat:
        break;
    }
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(std::max(node.min, node.max)));
    ALUDEL_ASSIGN_OR_RETURN(const NodeId body, Add(node.parts.front(), builder_.ReturnNode()));
    return builder_.Repeat(builder_.MakeRule(body), node.min, node.max, next);
  }

  absl::StatusOr<NodeId> Alternatives(const GbnfNode& node, NodeId next) {
    // A choice of texts stands in one place however many there are.
    if (absl::c_all_of(node.parts, [](const GbnfNode& part) { return part.kind == Kind::kText; })) {
      std::vector<std::string> texts;
      for (const GbnfNode& part : node.parts) {
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(4 + static_cast<int64_t>(part.text.size())));
        texts.push_back(part.text);
      }
      return builder_.OneOfLiterals(std::move(texts), next);
    }
    std::vector<NodeId> ways;
    for (const GbnfNode& part : node.parts) {
      ALUDEL_ASSIGN_OR_RETURN(const NodeId way, Add(part, next));
      ways.push_back(way);
    }
    return builder_.OneOf(ways);
  }

  const GbnfGrammar& grammar_;
  StepBudget* const budget_;
  GrammarBuilder builder_;
  CharacterRules characters_;
  std::vector<Rule> rules_;
};

}  // namespace

absl::StatusOr<Grammar> CompileGbnf(absl::string_view text, StepBudget* budget) {
  ALUDEL_ASSIGN_OR_RETURN(const GbnfGrammar grammar, ParseGbnf(text, budget));
  ALUDEL_RETURN_IF_ERROR(LeftRecursion(&grammar, budget).Check());
  return GbnfCompiler(&grammar, budget).Compile();
}

}  // namespace aludel
