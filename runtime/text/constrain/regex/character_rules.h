#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/text/constrain/grammar.h"
#include "runtime/text/constrain/regex/char_dfa.h"
#include "runtime/text/constrain/regex/code_points.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// Characters, and automata of them, as they are written in bytes: UTF-8, or what stands between the quotes of a JSON
// string. There each character is written in one way: escaped only where it must be (\" \\ \b \f \n \r \t \u00XX).
// Errors are the budget's. The builder and the budget must outlive it; not thread-safe.
class CharacterRules {
 public:
  using NodeId = GrammarBuilder::NodeId;
  enum class Writing : uint8_t { kPlain, kJson };

  CharacterRules(GrammarBuilder* builder, StepBudget* budget) : builder_(builder), budget_(budget) {}

  // One character of `set`, which must not be empty.
  absl::StatusOr<NodeId> Character(const CodePointSet& set, Writing writing, NodeId next);
  // A text of `dfa`, which must not be empty.
  absl::StatusOr<NodeId> Text(const CharDfa& dfa, Writing writing, NodeId next);

 private:
  absl::StatusOr<GrammarBuilder::Rule> Longer(CodePointSet set);
  absl::StatusOr<GrammarBuilder::Rule> Escaped(const ByteSet& set);

  GrammarBuilder* const builder_;
  StepBudget* const budget_;
  std::map<CodePointSet, GrammarBuilder::Rule> longer_;  // of two bytes and more
  std::map<std::pair<uint64_t, uint64_t>, GrammarBuilder::Rule> escaped_;
};

}  // namespace aludel
