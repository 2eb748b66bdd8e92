#include "runtime/text/constrain/regex/regex_nfa.h"

#include <algorithm>

#include "runtime/status_macros.h"

namespace aludel {
namespace {

// From its end to its beginning: every function takes the node that follows.
class NfaBuilder {
 public:
  NfaBuilder(RegexNfa* nfa, StepBudget* budget) : nfa_(*nfa), budget_(budget) {}

  absl::StatusOr<int32_t> Add(RegexNfa::Node node) {
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(2));
    nfa_.nodes.push_back(node);
    return static_cast<int32_t>(nfa_.nodes.size() - 1);
  }

  absl::StatusOr<int32_t> Set(const CodePointSet& set, int32_t next) {
    const auto [it, added] = set_ids_.try_emplace(set, static_cast<int32_t>(nfa_.sets.size()));
    if (added) nfa_.sets.push_back(set);
    return Add({RegexNfa::Kind::kSet, it->second, next});
  }

  absl::StatusOr<int32_t> Tree(const RegexTree& tree, int32_t next) {
    // Repetitions of nothing make no nodes, and cost time all the same.
    ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
    switch (tree.kind) {
      case RegexTree::Kind::kSet:
        return Set(tree.set, next);
      case RegexTree::Kind::kStart:
        return Add({RegexNfa::Kind::kStart, -1, next});
      case RegexTree::Kind::kEnd:
        return Add({RegexNfa::Kind::kEnd, -1, next});
      case RegexTree::Kind::kRepeat:
        return Repeat(tree, next);
      case RegexTree::Kind::kSequence:
        for (auto part = tree.parts.rbegin(); part != tree.parts.rend(); ++part) {
          ALUDEL_ASSIGN_OR_RETURN(next, Tree(*part, next));
        }
        return next;
      case RegexTree::Kind::kAlternatives:
        break;
    }
    int32_t node = -1;
    for (auto part = tree.parts.rbegin(); part != tree.parts.rend(); ++part) {
      ALUDEL_ASSIGN_OR_RETURN(const int32_t way, Tree(*part, next));
      if (node < 0) {
        node = way;
      } else {
        ALUDEL_ASSIGN_OR_RETURN(node, Add({RegexNfa::Kind::kSplit, way, node}));
      }
    }
    return node;
  }

 private:
  absl::StatusOr<int32_t> Repeat(const RegexTree& tree, int32_t next) {
    int32_t node = next;
    if (tree.max < 0) {
      ALUDEL_ASSIGN_OR_RETURN(node, Add({RegexNfa::Kind::kSplit, next, next}));
      ALUDEL_ASSIGN_OR_RETURN(const int32_t body, Tree(tree.parts.front(), node));
      nfa_.nodes[node].to = body;
    }
    for (int32_t i = std::max(tree.min, tree.max); i > 0; --i) {
      ALUDEL_ASSIGN_OR_RETURN(node, Tree(tree.parts.front(), node));
      if (i > tree.min) {
        ALUDEL_ASSIGN_OR_RETURN(node, Add({RegexNfa::Kind::kSplit, node, next}));
      }
    }
    return node;
  }

  RegexNfa& nfa_;
  StepBudget* const budget_;
  std::map<CodePointSet, int32_t> set_ids_;
};

}  // namespace

absl::StatusOr<RegexNfa> RegexNfa::Make(const RegexTree& tree, bool anywhere, StepBudget* budget) {
  RegexNfa nfa;
  NfaBuilder builder(&nfa, budget);
  ALUDEL_ASSIGN_OR_RETURN(const int32_t match, builder.Add({Kind::kMatch, -1, -1}));
  ALUDEL_ASSIGN_OR_RETURN(nfa.start, builder.Tree(tree, match));
  if (!anywhere) return nfa;
  ALUDEL_ASSIGN_OR_RETURN(const int32_t loop, builder.Add({Kind::kSplit, nfa.start, -1}));
  ALUDEL_ASSIGN_OR_RETURN(nfa.nodes[loop].next, builder.Set(CodePointSet::All(), loop));
  nfa.start = loop;
  return nfa;
}

}  // namespace aludel
