#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace aludel {

// What the scheduler needs to know of one sequence. Sequences that wait for frames are not listed.
struct SchedulerSequence {
  uint64_t id = 0;
  // Prompt tokens still to be computed; 0: the sequence decodes, one token a step.
  int64_t prompt_left = 0;
};

struct StepItem {
  uint64_t id = 0;
  int64_t tokens = 0;
};

// Chooses what one forward pass computes: at most `token_budget` tokens over `sequences` (in order of
// admission). Decodes come first, one token each, because their users are reading; but while a prompt waits a
// quarter of the budget is its own. Neither starves: with D decodes, each runs at least once in ceil(D / (3/4
// budget)) steps (`step` rotates who comes first), and the oldest prompt advances by at least a quarter of
// the budget, or ends, in every step. Pure: the same arguments give the same plan. Items keep the order of
// `sequences`.
std::vector<StepItem> PlanStep(absl::Span<const SchedulerSequence> sequences, int64_t token_budget,
                               uint64_t step);

}  // namespace aludel
