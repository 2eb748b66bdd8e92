#include "runtime/scheduler.h"

#include <algorithm>

#include "kernels/check.h"

namespace aludel {

std::vector<StepItem> PlanStep(absl::Span<const SchedulerSequence> sequences, int64_t token_budget,
                               uint64_t step) {
  ALUDEL_CHECK(token_budget > 0);
  int64_t decodes = 0;
  int64_t prompt_tokens = 0;
  for (const SchedulerSequence& sequence : sequences) {
    if (sequence.prompt_left == 0) ++decodes;
    prompt_tokens += sequence.prompt_left;
  }
  const int64_t kept_for_prompts = std::min(prompt_tokens, std::max<int64_t>(1, token_budget / 4));
  // A budget of one token cannot be shared within a step, so it alternates.
  int64_t decode_slots = std::max<int64_t>(token_budget - kept_for_prompts, 0);
  if (token_budget == 1 && decodes > 0 && step % 2 == 0) decode_slots = 1;
  const int64_t chosen = std::min(decodes, decode_slots);
  const int64_t first = decodes == 0 ? 0 : static_cast<int64_t>((step * chosen) % decodes);
  int64_t prompt_budget = token_budget - chosen;

  std::vector<StepItem> plan;
  int64_t index = 0;
  for (const SchedulerSequence& sequence : sequences) {
    if (sequence.prompt_left == 0) {
      const bool runs = (index - first + decodes) % decodes < chosen;
      ++index;
      if (runs) plan.push_back({sequence.id, 1});
    } else if (prompt_budget > 0) {
      const int64_t tokens = std::min(sequence.prompt_left, prompt_budget);
      prompt_budget -= tokens;
      plan.push_back({sequence.id, tokens});
    }
  }
  return plan;
}

}  // namespace aludel
