#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "runtime/status_macros.h"
#include "runtime/text/constrain/regex/char_dfa.h"
#include "runtime/text/constrain/regex/regex_nfa.h"

namespace aludel {

// Makes the nodes of a graph in which a text may stand at the same time one state.
class SubsetConstruction {
 public:
  SubsetConstruction(const RegexNfa* nfa, bool anywhere, Alphabet alphabet, StepBudget* budget)
      : nfa_(*nfa),
        anywhere_(anywhere),
        budget_(budget),
        dfa_(std::move(alphabet)),
        visited_(nfa->nodes.size(), 0) {}

  absl::StatusOr<CharDfa> Run() {
    for (const CodePointSet& set : nfa_.sets) {
      symbols_of_.push_back(dfa_.alphabet().SymbolsIn(set));
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(1 + static_cast<int64_t>(set.ranges().size())));
    }
    // The first state knows that nothing stands before it, and is no other's equal.
    ALUDEL_ASSIGN_OR_RETURN(Nodes start, Close({nfa_.start}, /*at_start=*/true, /*at_end=*/false));
    ALUDEL_RETURN_IF_ERROR(Add(std::move(start), /*at_start=*/true).status());
    std::vector<Nodes> targets(dfa_.alphabet().size());
    for (size_t at = 0; at < states_.size(); ++at) {
      for (Nodes& nodes : targets) nodes.clear();
      for (const int32_t node : states_[at]) {
        if (nfa_.nodes[node].kind == RegexNfa::Kind::kMatch && anywhere_) {
          for (Nodes& nodes : targets) nodes.push_back(node);
        }
        if (nfa_.nodes[node].kind != RegexNfa::Kind::kSet) continue;
        const std::vector<int32_t>& symbols = symbols_of_[nfa_.nodes[node].to];
        ALUDEL_RETURN_IF_ERROR(budget_->Spend(1 + static_cast<int64_t>(symbols.size()) / 2));
        for (const int32_t symbol : symbols) targets[symbol].push_back(nfa_.nodes[node].next);
      }
      for (int32_t symbol = 1; symbol < dfa_.alphabet().size(); ++symbol) {
        if (targets[symbol].empty()) continue;
        ALUDEL_ASSIGN_OR_RETURN(Nodes nodes, Close(targets[symbol], false, false));
        if (nodes.empty()) continue;
        ALUDEL_ASSIGN_OR_RETURN(const int32_t to, Intern(std::move(nodes)));
        dfa_.Next(static_cast<int32_t>(at), symbol) = to;
      }
    }
    dfa_.Trim();
    return std::move(dfa_);
  }

 private:
  using Nodes = std::vector<int32_t>;

  // Where these lead without a character, as far as a text waits there. What may begin and end anywhere needs to know
  // no more than that it has matched.
  absl::StatusOr<Nodes> Close(Nodes pending, bool at_start, bool at_end) {
    Nodes resting;
    ++visit_;
    while (!pending.empty()) {
      const int32_t node = pending.back();
      pending.pop_back();
      ALUDEL_RETURN_IF_ERROR(budget_->Spend(1));
      if (std::exchange(visited_[node], visit_) == visit_) continue;
      const RegexNfa::Node& entry = nfa_.nodes[node];
      switch (entry.kind) {
        case RegexNfa::Kind::kSplit:
          pending.push_back(entry.to);
          pending.push_back(entry.next);
          break;
        case RegexNfa::Kind::kStart:
          if (at_start) pending.push_back(entry.next);
          break;
        case RegexNfa::Kind::kEnd:
          at_end ? pending.push_back(entry.next) : resting.push_back(node);
          break;
        case RegexNfa::Kind::kMatch:
          if (anywhere_) return Nodes{node};
          resting.push_back(node);
          break;
        case RegexNfa::Kind::kSet:
          resting.push_back(node);
          break;
      }
    }
    std::sort(resting.begin(), resting.end());
    return resting;
  }

  absl::StatusOr<int32_t> Add(Nodes nodes, bool at_start) {
    ALUDEL_ASSIGN_OR_RETURN(const Nodes last, Close(nodes, at_start, /*at_end=*/true));
    const auto matches = [this](int32_t node) { return nfa_.nodes[node].kind == RegexNfa::Kind::kMatch; };
    ALUDEL_ASSIGN_OR_RETURN(const int32_t id,
                            dfa_.AddState(std::any_of(last.begin(), last.end(), matches), budget_));
    states_.push_back(std::move(nodes));
    return id;
  }

  absl::StatusOr<int32_t> Intern(Nodes nodes) {
    if (const auto known = ids_.find(nodes); known != ids_.end()) return known->second;
    Nodes key = nodes;
    ALUDEL_ASSIGN_OR_RETURN(const int32_t id, Add(std::move(nodes), /*at_start=*/false));
    ids_.emplace(std::move(key), id);
    return id;
  }

  const RegexNfa& nfa_;
  const bool anywhere_;
  StepBudget* const budget_;
  CharDfa dfa_;
  std::vector<std::vector<int32_t>> symbols_of_;  // of each set
  std::vector<Nodes> states_;
  absl::flat_hash_map<Nodes, int32_t> ids_;
  std::vector<int32_t> visited_;  // by node: the visit that came last
  int32_t visit_ = 0;
};

absl::StatusOr<CharDfa> CharDfa::Make(const RegexTree& tree, Match match, StepBudget* budget) {
  const bool anywhere = match == Match::kAnywhere;
  ALUDEL_ASSIGN_OR_RETURN(const RegexNfa nfa, RegexNfa::Make(tree, anywhere, budget));
  ALUDEL_ASSIGN_OR_RETURN(Alphabet alphabet, Alphabet::Of(nfa.sets, budget));
  return SubsetConstruction(&nfa, anywhere, std::move(alphabet), budget).Run();
}

}  // namespace aludel
