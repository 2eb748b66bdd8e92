#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "kernels/check.h"

namespace aludel {
namespace {

int64_t KeptForPrompts(int64_t budget) { return std::max<int64_t>(1, budget / 4); }

// What a prompt may lack to go before longer ones.
int64_t MostOfATail(int64_t budget) { return budget / 8; }

int64_t MostOfAStep(const SchedulerSequence& sequence) {
  const int64_t tokens = std::min(sequence.left, sequence.most_tokens);
  return sequence.scored ? std::min(tokens, kMostScoredTokens) : tokens;
}

// Tracks which sequence holds which blocks while a plan is made: the state and the plan's changes so far.
class BlockBook {
 public:
  explicit BlockBook(const SchedulerState& state)
      : references_(state.references), block_tokens_(state.block_tokens), free_(state.free_blocks) {}

  int64_t free() const { return free_; }

  // Free blocks that computing `tokens` more takes.
  int64_t Need(const SchedulerSequence& sequence, int64_t tokens) const {
    const auto held = static_cast<int64_t>(sequence.blocks.size());
    const int64_t end = (sequence.computed + tokens + block_tokens_ - 1) / block_tokens_;
    return std::max<int64_t>(0, end - held) + (Copies(sequence) ? 1 : 0);
  }

  // Tokens that the free blocks suffice for, at most `tokens`.
  int64_t Room(const SchedulerSequence& sequence, int64_t tokens) const {
    const int64_t fresh = free_ - (Copies(sequence) ? 1 : 0);
    if (fresh < 0) return 0;
    const auto held = static_cast<int64_t>(sequence.blocks.size());
    return std::clamp<int64_t>((held + fresh) * block_tokens_ - sequence.computed, 0, tokens);
  }

  void Take(const SchedulerSequence& sequence, int64_t tokens) {
    free_ -= Need(sequence, tokens);
    if (Copies(sequence)) Drop(sequence.blocks[sequence.computed / block_tokens_]);
  }

  void GiveUp(const SchedulerSequence& sequence) {
    for (size_t i = sequence.kept_blocks; i < sequence.blocks.size(); ++i) Drop(sequence.blocks[i]);
  }

 private:
  // The block that it writes next is shared, so it takes a copy.
  bool Copies(const SchedulerSequence& sequence) const {
    const size_t at = sequence.computed / block_tokens_;
    return at < sequence.blocks.size() && References(sequence.blocks[at]) > 1;
  }
  int32_t References(BlockId id) const {
    const auto dropped = dropped_.find(id);
    return references_[id] - (dropped == dropped_.end() ? 0 : dropped->second);
  }
  void Drop(BlockId id) {
    ++dropped_[id];
    if (References(id) == 0) ++free_;
  }

  absl::Span<const int32_t> references_;
  int64_t block_tokens_;
  int64_t free_;
  absl::flat_hash_map<BlockId, int32_t> dropped_;
};

// The `count` decodes that have waited longest, of those that are not blocked.
std::vector<bool> ChooseDecodes(absl::Span<const SchedulerSequence> sequences,
                                const std::vector<bool>& blocked, int64_t count) {
  std::vector<size_t> decodes;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].decoding && !blocked[i]) decodes.push_back(i);
  }
  std::stable_sort(decodes.begin(), decodes.end(),
                   [&](size_t a, size_t b) { return sequences[a].last_step < sequences[b].last_step; });
  std::vector<bool> chosen(sequences.size(), false);
  for (int64_t i = 0; i < count; ++i) chosen[decodes[i]] = true;
  return chosen;
}

// Tokens of the step for prompts that lack few, before longer ones that came first: at most `most` over all of them.
std::vector<int64_t> ShareTails(const SchedulerState& state, int64_t most) {
  std::vector<int64_t> tails(state.sequences.size());
  for (size_t i = 0; i < tails.size(); ++i) {
    const SchedulerSequence& sequence = state.sequences[i];
    if (sequence.decoding || sequence.paused || sequence.spare || sequence.scored) continue;
    if (sequence.left > std::min({most, sequence.most_tokens, MostOfATail(state.token_budget)})) continue;
    tails[i] = sequence.left;
    most -= sequence.left;
  }
  return tails;
}

// Blocks are taken in order of rank, so the sequences that give them up have not been planned yet.
class StepPlanner {
 public:
  explicit StepPlanner(const SchedulerState& state)
      : state_(state), book_(state), gone_(state.sequences.size(), false) {}

  // `blocked` decodes are not given a turn. Adds those that had one and find no block.
  StepPlan Plan(std::vector<bool>* blocked);

  // Preempts sequences behind `index`, the last first, until `enough` of the book; none where even all of
  // them would not do.
  template <typename Enough>
  bool MakeRoom(size_t index, const Enough& enough) {
    if (enough(book_)) return true;
    BlockBook trial = book_;
    std::vector<size_t> victims;
    for (size_t i = state_.sequences.size(); i-- > index + 1 && !enough(trial);) {
      const SchedulerSequence& victim = state_.sequences[i];
      if (gone_[i] || static_cast<int64_t>(victim.blocks.size()) <= victim.kept_blocks) continue;
      trial.GiveUp(victim);
      victims.push_back(i);
    }
    if (!enough(trial)) return false;
    book_ = trial;
    for (const size_t i : victims) {
      gone_[i] = true;
      plan_.preempted.push_back(state_.sequences[i].id);
    }
    return true;
  }
  const StepPlan& plan() const { return plan_; }

 private:
  bool MayStart(size_t index, int64_t decodes_before);

  const SchedulerState& state_;
  BlockBook book_;
  std::vector<bool> gone_;         // preempted by this plan
  bool start_is_blocked_ = false;  // a sequence waits for blocks: none after it starts
  StepPlan plan_;
};

bool StepPlanner::MayStart(size_t index, int64_t decodes_before) {
  const SchedulerSequence& sequence = state_.sequences[index];
  if (sequence.started || index == 0) return true;
  if (!start_is_blocked_) {
    start_is_blocked_ = !MakeRoom(index, [&](const BlockBook& book) {
      return book.free() >= book.Need(sequence, sequence.left) + decodes_before;
    });
  }
  return !start_is_blocked_;
}

StepPlan StepPlanner::Plan(std::vector<bool>* blocked) {
  int64_t decodes = 0;
  int64_t prompt_tokens = 0;
  for (size_t i = 0; i < state_.sequences.size(); ++i) {
    const SchedulerSequence& sequence = state_.sequences[i];
    decodes += sequence.decoding && !(*blocked)[i] ? 1 : 0;
    if (sequence.decoding || sequence.spare || sequence.paused) continue;
    prompt_tokens += MostOfAStep(sequence);
  }
  const int64_t budget = state_.token_budget;
  const int64_t kept_for_prompts = std::min(prompt_tokens, KeptForPrompts(budget));
  int64_t decode_slots = std::max<int64_t>(budget - kept_for_prompts, 0);
  // A budget of one token cannot be shared within a step, so it alternates.
  if (budget == 1 && decodes > 0 && state_.step % 2 == 0) decode_slots = 1;
  const int64_t chosen = std::min(decodes, decode_slots);
  const std::vector<bool> runs = ChooseDecodes(state_.sequences, *blocked, chosen);
  int64_t prompt_budget = budget - chosen;
  int64_t scored_budget = kMostScoredTokens;
  const std::vector<int64_t> tails = ShareTails(state_, prompt_budget / 2);
  int64_t promised = std::accumulate(tails.begin(), tails.end(), int64_t{0});
  if (promised > 0 && state_.after_long) prompt_budget = promised;

  int64_t decodes_before = 0;
  for (size_t i = 0; i < state_.sequences.size(); ++i) {
    const SchedulerSequence& sequence = state_.sequences[i];
    promised -= tails[i];
    if (gone_[i]) continue;
    decodes_before += sequence.decoding ? 1 : 0;
    int64_t tokens = std::min(MostOfAStep(sequence), prompt_budget - promised);
    if (sequence.scored) tokens = std::min(tokens, scored_budget);
    if (sequence.decoding) tokens = runs[i] ? 1 : 0;
    if (sequence.paused) tokens = 0;
    if (tokens == 0 || !MayStart(i, decodes_before)) continue;
    const int64_t wanted = tokens;
    MakeRoom(i, [&](const BlockBook& book) { return book.free() >= book.Need(sequence, wanted); });
    tokens = book_.Room(sequence, tokens);
    if (tokens == 0) {
      (*blocked)[i] = sequence.decoding;
      continue;
    }
    book_.Take(sequence, tokens);
    if (!sequence.decoding) prompt_budget -= tokens;
    plan_.has_long |= !sequence.decoding && tails[i] == 0;
    if (sequence.scored) scored_budget -= tokens;
    plan_.items.push_back({sequence.id, tokens});
  }
  return std::move(plan_);
}

}  // namespace

StepPlan PlanStep(const SchedulerState& state) {
  ALUDEL_CHECK(state.token_budget > 0);
  // A decode without a block would have waited longest in the next step, too, and keep its turn from others.
  std::vector<bool> blocked;
  for (const SchedulerSequence& sequence : state.sequences) blocked.push_back(sequence.paused);
  while (true) {
    const std::vector<bool> before = blocked;
    StepPlan plan = StepPlanner(state).Plan(&blocked);
    if (blocked != before) continue;
    if (!plan.items.empty() || !state.after_long) return plan;
    // Those that the step was for find no block.
    SchedulerState all = state;
    all.after_long = false;
    return PlanStep(all);
  }
}

int64_t MostStepsToAToken(int64_t decodes, int64_t token_budget) {
  if (token_budget == 1) return 2 * decodes;
  const int64_t slots = token_budget - KeptForPrompts(token_budget);
  return (decodes + slots - 1) / slots;
}

std::vector<uint64_t> PlanReservation(const SchedulerState& state, int64_t blocks) {
  StepPlanner planner(state);
  const bool enough = planner.MakeRoom(0, [&](const BlockBook& book) { return book.free() >= blocks; });
  ALUDEL_CHECK(enough);
  return planner.plan().preempted;
}

}  // namespace aludel
