#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/text/constrain/regex/code_points.h"
#include "runtime/text/constrain/step_budget.h"

namespace aludel {

// Characters in classes that an automaton need not tell apart: it has one transition a class, of which there are some
// dozens, and not one a character. Symbol 0 stands for surrogates, which no text has.
class Alphabet {
 public:
  // Characters that lie in the same of these sets are one symbol. Errors are the budget's.
  static absl::StatusOr<Alphabet> Of(absl::Span<const CodePointSet> sets, StepBudget* budget);
  // As fine as all of these together.
  static absl::StatusOr<Alphabet> Joint(absl::Span<const Alphabet* const> parts, StepBudget* budget);

  int32_t size() const { return size_; }
  int32_t SymbolOf(uint32_t code_point) const;
  // Which of its symbols make up a set that it was made of, or that is made of such.
  std::vector<int32_t> SymbolsIn(const CodePointSet& set) const;
  CodePointSet CharactersOf(absl::Span<const int32_t> symbols) const;
  // For each symbol, which one of `coarser` holds it; this is Joint() of it and others.
  std::vector<int32_t> In(const Alphabet& coarser) const;

 private:
  // Characters from `first` up to the next cut are of one symbol. Ascending; the first is at 0.
  struct Cut {
    uint32_t first = 0;
    int32_t symbol = 0;
  };
  // Cuts at the surrogates and at `points`, all characters one symbol.
  void CutAt(std::vector<uint32_t> points);
  // Tells cuts apart whose keys differ; asks for them in order.
  template <typename Key>
  void Refine(const Key& key);

  std::vector<Cut> cuts_;
  int32_t size_ = 0;
};

}  // namespace aludel
