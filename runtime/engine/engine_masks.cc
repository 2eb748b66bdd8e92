#include "runtime/engine/engine_masks.h"

#include <algorithm>
#include <map>
#include <vector>

namespace aludel {

void EngineMasks::Prepare(const SequenceMap& sequences) {
  pending_ = false;
  // All sequences of a constraint share its steps, so that a request of many choices gets no more than others. What one
  // takes beyond its share is missing for all.
  std::map<const TokenAutomaton*, std::vector<Sequence*>> waiting;
  for (const auto& [id, sequence] : sequences) {
    if (sequence->constraint == nullptr) continue;
    int64_t none = 0;
    sequence->lacks_mask = !sequence->constraint->Prepare(&none);
    if (sequence->lacks_mask) waiting[sequence->constraint->automaton()].push_back(sequence.get());
  }
  if (waiting.empty()) return;
  const int64_t share = std::max(kSteps / static_cast<int64_t>(waiting.size()), kLeastSteps);
  int64_t left = kSteps;
  for (const auto& [automaton, group] : waiting) {
    if (left <= 0) {
      pending_ = true;
      break;
    }
    int64_t steps = std::min(share, left);
    // Those that have waited longest go first.
    std::vector<Sequence*> turns = group;
    std::stable_sort(turns.begin(), turns.end(),
                     [](const Sequence* a, const Sequence* b) { return a->last_step < b->last_step; });
    for (Sequence* sequence : turns) {
      sequence->lacks_mask = !sequence->constraint->Prepare(&steps);
      pending_ = pending_ || sequence->lacks_mask;
      left -= std::min(share, left) - steps;
      steps = std::max<int64_t>(steps, 0);
    }
  }
}

}  // namespace aludel
