#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/text/constrain/regex/alphabet.h"
#include "runtime/text/constrain/regex/regex_tree.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// A regular language over characters as a deterministic automaton: small enough to look at as a whole, so that
// languages can be intersected and negated, which is what several keywords of one string are. Every state that is left
// leads to an end. Immutable and thread-safe once made.
class CharDfa {
 public:
  static constexpr int32_t kDead = -1;
  static constexpr size_t kMaxStates = 1 << 16;

  // Whether a text must match as a whole, or may hold a match anywhere, as JSON Schema's patterns do.
  enum class Match { kWhole, kAnywhere };

  // InvalidArgument where more than kMaxStates are needed, to be read behind "the pattern"; the budget's errors.
  static absl::StatusOr<CharDfa> Make(const RegexTree& tree, Match match, StepBudget* budget);
  // One of these texts, of UTF-8.
  static absl::StatusOr<CharDfa> MakeList(const std::vector<std::string>& texts, StepBudget* budget);
  // Texts of `min` to `max` characters (max < 0: any number).
  static absl::StatusOr<CharDfa> MakeLengths(int64_t min, int64_t max, StepBudget* budget);

  struct Term {
    const CharDfa* dfa = nullptr;
    bool negated = false;
  };
  // Texts that every term has, or, where it is negated, has not. No terms: all texts.
  static absl::StatusOr<CharDfa> Intersect(absl::Span<const Term> terms, StepBudget* budget);

  bool empty() const { return accepts_.empty(); }
  bool Has(absl::string_view utf8) const;

  // State 0 is the start.
  size_t states() const { return accepts_.size(); }
  bool accepts(int32_t state) const { return accepts_[state]; }
  // Where a state leads, one edge for each state that follows.
  struct Edge {
    std::vector<int32_t> symbols;  // ascending
    int32_t to = kDead;
  };
  std::vector<Edge> EdgesOf(int32_t state) const;
  const Alphabet& alphabet() const { return alphabet_; }

 private:
  friend class SubsetConstruction;

  explicit CharDfa(Alphabet alphabet) : alphabet_(std::move(alphabet)) {}
  // A state that leads nowhere; the budget pays for its transitions.
  absl::StatusOr<int32_t> AddState(bool accepts, StepBudget* budget);
  int32_t& Next(int32_t state, int32_t symbol) {
    return next_[static_cast<size_t>(state) * alphabet_.size() + symbol];
  }
  int32_t Next(int32_t state, int32_t symbol) const {
    return next_[static_cast<size_t>(state) * alphabet_.size() + symbol];
  }
  // Drops states that lead to no end.
  void Trim();

  Alphabet alphabet_;
  std::vector<int32_t> next_;  // [states, symbols]
  std::vector<bool> accepts_;  // [states]; none: the language is empty
};

}  // namespace aludel
