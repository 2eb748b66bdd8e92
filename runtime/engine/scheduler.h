#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "runtime/engine/engine_options.h"
#include "runtime/kv/kv_layout.h"

namespace aludel {

// One step of priority lets a request pass at most this many that came before it.
constexpr int64_t kPriorityStride = 64;

// Tokens of one step, over all sequences, whose logits go to the host, which takes some tenths of a millisecond each with
// a vocabulary of 100,000: decodes are not to wait for more of them.
constexpr int64_t kMostScoredTokens = 64;

// What the scheduler needs to know of one sequence. Sequences that wait for frames are not listed.
struct SchedulerSequence {
  uint64_t id = 0;
  int64_t computed = 0;    // tokens in the cache
  int64_t left = 0;        // tokens to compute before it can choose its next one, at least 1
  bool decoding = false;   // left is 1, and a client reads what comes
  bool started = false;    // has computed something since it was admitted or preempted
  uint64_t last_step = 0;  // it was part of; of a sequence that has not started, anything
  absl::Span<const BlockId> blocks;
  int64_t kept_blocks = 0;  // its first blocks, which came over the wire: preemption leaves them
  bool paused = false;      // computes nothing in this step; its blocks may be taken as if it did
  bool spare = false;       // gets only tokens that the others leave; stands last in rank
  int64_t most_tokens = std::numeric_limits<int64_t>::max();  // of one step
  bool scored = false;  // every token's logits go to the host: see kMostScoredTokens
};

// Everything that a plan depends on.
struct SchedulerState {
  absl::Span<const SchedulerSequence> sequences;  // in order of rank: id + kPriorityStride * priority
  absl::Span<const int32_t> references;           // of every block of the pool: sequences that hold it
  int64_t free_blocks = 0;
  int block_tokens = 16;
  int64_t token_budget = 0;  // of one step
  uint64_t step = 0;         // number of the step to plan
  bool after_long = false;   // StepPlan::has_long of the last step
};

struct StepItem {
  uint64_t id = 0;
  int64_t tokens = 0;
};

struct StepPlan {
  std::vector<uint64_t> preempted;  // to be done first; they give up all blocks but the kept ones
  std::vector<StepItem> items;      // in order of rank
  bool has_long = false;            // some of them are of prompts that lack many tokens
};

// Chooses what one forward pass computes, and which sequences give up blocks for it. Pure: the same state
// gives the same plan, and the plan's items find the blocks they need.
//
// Tokens. Decodes come first, one token each, because clients are reading them; while a prompt waits, a quarter of the
// budget is reserved for it. Of more decodes than fit, those that have waited longest run: with never more than D, each
// runs at least once in MostStepsToAToken(D, budget) steps. Prompts get at least a quarter of the budget in every step
// (every second). Up to half of what they get goes to those that lack at most an eighth of the budget, so that a prompt whose
// cache was handed over or found here does not wait behind long ones; the rest in order of rank. Behind a step that had
// long ones those have the next for themselves: it takes a small part of the time. Nothing is reserved for spare sequences.
//
// Blocks. A sequence that needs blocks that are not free takes them from sequences of lower rank, the last
// first. These compute again what they lose. A sequence starts only when all of it fits beside one more block
// for every decode that ranks before it, and none starts before a higher one that waits for blocks.
//
// No request starves: the first in rank runs whenever its turn comes, at least in every second step, and is never preempted, so it ends, and
// then the second is first. Rank is fixed when a request comes. P steps of priority let it pass at most
// P * kPriorityStride earlier ones. So a request of priority p waits for those that came before it, and for
// at most (p + kMaxPriority) * kPriorityStride (1,024 for p = 0) of those that come later, however many and
// urgent they are.
StepPlan PlanStep(const SchedulerState& state);

// ceil(decodes / (3/4 budget)); 2 decodes where the budget is one token. Blocks do not count here: a
// preempted sequence computes again what it lost before its next token.
int64_t MostStepsToAToken(int64_t decodes, int64_t token_budget);

// The sequences to preempt so that `blocks` are free for a handoff that was promised them: the last in rank
// first, and never the first. Admission makes sure that this is enough.
std::vector<uint64_t> PlanReservation(const SchedulerState& state, int64_t blocks);

}  // namespace aludel
