#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {

bool operator==(const StepItem& a, const StepItem& b) { return a.id == b.id && a.tokens == b.tokens; }

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kBlockTokens = 4;

// Sequences in order of rank over a pool of blocks, written down as a table.
class Table {
 public:
  explicit Table(int64_t blocks) : references_(blocks, 0) {}

  // A sequence that has computed `computed` tokens into blocks of its own.
  Table& Add(uint64_t id, int64_t computed, int64_t left, int64_t kept_blocks = 0) {
    held_.emplace_back();
    for (int64_t token = 0; token < computed; token += kBlockTokens) held_.back().push_back(Take());
    sequences_.push_back({.id = id,
                          .computed = computed,
                          .left = left,
                          .decoding = left == 1,
                          .started = computed > 0,
                          .kept_blocks = kept_blocks});
    return *this;
  }
  Table& Decode(uint64_t id, int64_t computed = 5) { return Add(id, computed, 1); }
  Table& Prompt(uint64_t id, int64_t left) { return Add(id, 0, left); }
  Table& Spare(uint64_t id, int64_t left) {
    Prompt(id, left);
    sequences_.back().spare = true;
    return *this;
  }
  // The sequence added last computes nothing.
  Table& Pause() {
    sequences_.back().paused = true;
    return *this;
  }
  // The sequence added last computes at most `tokens` in a step.
  Table& Most(int64_t tokens) {
    sequences_.back().most_tokens = tokens;
    return *this;
  }
  // A choice that shares all blocks of the sequence added last.
  Table& Fork(uint64_t id) {
    held_.push_back(held_.back());
    for (const BlockId block : held_.back()) ++references_[block];
    sequences_.push_back(sequences_.back());
    sequences_.back().id = id;
    return *this;
  }

  StepPlan Plan(int64_t budget, uint64_t step = 0, bool after_long = false) {
    SchedulerState state = State(budget, step);
    state.after_long = after_long;
    StepPlan plan = PlanStep(state);
    for (const StepItem& item : plan.items) {
      for (SchedulerSequence& sequence : sequences_) {
        if (sequence.id == item.id) sequence.last_step = step;
      }
    }
    return plan;
  }
  std::vector<uint64_t> Reserve(int64_t blocks) { return PlanReservation(State(1, 0), blocks); }

 private:
  BlockId Take() {
    const auto free = std::find(references_.begin(), references_.end(), 0);
    EXPECT_NE(free, references_.end());
    ++*free;
    return static_cast<BlockId>(free - references_.begin());
  }
  SchedulerState State(int64_t budget, uint64_t step) {
    for (size_t i = 0; i < held_.size(); ++i) sequences_[i].blocks = held_[i];
    return {.sequences = sequences_,
            .references = references_,
            .free_blocks = std::count(references_.begin(), references_.end(), 0),
            .block_tokens = kBlockTokens,
            .token_budget = budget,
            .step = step};
  }

  std::vector<int32_t> references_;
  std::vector<std::vector<BlockId>> held_;
  std::vector<SchedulerSequence> sequences_;
};

TEST(Scheduler, PlansNothingForNobody) { EXPECT_THAT(Table(9).Plan(8).items, IsEmpty()); }

TEST(Scheduler, CutsAPromptIntoChunksOfTheBudget) {
  EXPECT_THAT(Table(9).Prompt(1, 20).Plan(8).items, ElementsAre(StepItem{1, 8}));
}

TEST(Scheduler, LimitsWhatASequenceComputesInAStep) {
  Table table(99);
  table.Prompt(1, 20).Most(3).Prompt(2, 20);
  EXPECT_THAT(table.Plan(8).items, ElementsAre(StepItem{1, 3}, StepItem{2, 5}));
}

TEST(Scheduler, DecodesFirstAndFillsTheRestWithPrompts) {
  Table table(99);
  table.Decode(1).Prompt(2, 100).Decode(3).Prompt(4, 100);
  EXPECT_THAT(table.Plan(8).items, ElementsAre(StepItem{1, 1}, StepItem{2, 6}, StepItem{3, 1}));
}

TEST(Scheduler, LetsWhatLacksFewTokensPassLongPrompts) {
  // The last two tokens of a prompt that was handed over, behind one that has all to compute.
  EXPECT_THAT(Table(40).Prompt(1, 100).Add(2, 20, 2).Plan(16).items,
              ElementsAre(StepItem{1, 14}, StepItem{2, 2}));
  EXPECT_THAT(Table(40).Prompt(1, 100).Add(2, 20, 3).Plan(16).items, ElementsAre(StepItem{1, 16}))
      << "more than an eighth of the step";
  Table many(80);
  many.Prompt(1, 100);
  for (uint64_t id = 2; id < 8; ++id) many.Add(id, 20, 2);
  EXPECT_THAT(many.Plan(16).items,
              ElementsAre(StepItem{1, 8}, StepItem{2, 2}, StepItem{3, 2}, StepItem{4, 2}, StepItem{5, 2}))
      << "half of the step is for the others";
  EXPECT_THAT(Table(40).Prompt(1, 100).Add(2, 20, 2).Pause().Plan(16).items, ElementsAre(StepItem{1, 16}));
}

TEST(Scheduler, GivesWhatLacksFewTokensAStepOfItsOwnBehindALongOne) {
  Table table(60);
  table.Decode(1).Prompt(2, 100).Add(3, 20, 2);
  const StepPlan both = table.Plan(16);
  EXPECT_THAT(both.items, ElementsAre(StepItem{1, 1}, StepItem{2, 13}, StepItem{3, 2}));
  EXPECT_TRUE(both.has_long);
  const StepPlan alone = table.Plan(16, /*step=*/1, /*after_long=*/true);
  EXPECT_THAT(alone.items, ElementsAre(StepItem{1, 1}, StepItem{3, 2}));
  EXPECT_FALSE(alone.has_long) << "the next one is for all";
  EXPECT_THAT(Table(60).Decode(1).Prompt(2, 100).Plan(16, 1, true).items,
              ElementsAre(StepItem{1, 1}, StepItem{2, 15}))
      << "there is none";
  EXPECT_THAT(Table(7).Add(1, 5, 100).Add(2, 20, 2, /*kept_blocks=*/5).Plan(16, 1, true).items,
              ElementsAre(StepItem{1, 3}))
      << "it finds no block";
}

TEST(Scheduler, KeepsAQuarterOfTheBudgetForPromptsAndRotatesDecodes) {
  Table table(99);
  table.Decode(1).Decode(2).Decode(3).Decode(4).Prompt(5, 9);
  EXPECT_THAT(table.Plan(4, 1).items,
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}, StepItem{3, 1}, StepItem{5, 1}));
  EXPECT_THAT(table.Plan(4, 2).items,
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}, StepItem{4, 1}, StepItem{5, 1}));
  EXPECT_THAT(table.Plan(4, 3).items,
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}, StepItem{3, 1}, StepItem{5, 1}));
}

TEST(Scheduler, SharesABudgetOfOneByTurns) {
  Table table(9);
  table.Decode(1).Prompt(2, 9);
  EXPECT_THAT(table.Plan(1, 0).items, ElementsAre(StepItem{1, 1}));
  EXPECT_THAT(table.Plan(1, 1).items, ElementsAre(StepItem{2, 1}));
}

TEST(Scheduler, PreemptsTheLastInRankWhenBlocksRunOut) {
  Table table(6);
  table.Decode(1, 8).Decode(2, 8).Decode(3, 8);  // each needs a third block, none is free
  const StepPlan plan = table.Plan(8);
  EXPECT_THAT(plan.preempted, ElementsAre(3));
  EXPECT_THAT(plan.items, ElementsAre(StepItem{1, 1}, StepItem{2, 1}));
}

TEST(Scheduler, PreemptsNobodyForASequenceThatCouldNotRunEvenSo) {
  Table table(4);
  table.Decode(1, 7).Decode(2, 4).Add(3, 4, 1, /*kept_blocks=*/1);
  const StepPlan plan = table.Plan(8);  // 2 finds nothing behind it: 3's block came over the wire
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(plan.items, ElementsAre(StepItem{1, 1}));
}

TEST(Scheduler, TakesOnlyWhatDidNotComeOverTheWire) {
  Table table(5);
  table.Decode(1, 8).Add(2, 12, 1, /*kept_blocks=*/2);
  const StepPlan plan = table.Plan(8);
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_THAT(plan.items, ElementsAre(StepItem{1, 1}));
}

TEST(Scheduler, GivesAPromptAsMuchAsTheBlocksHold) {
  Table table(5);
  table.Add(1, 4, 30).Decode(2, 5);
  const StepPlan plan = table.Plan(16);  // two are free; of 2's two blocks nothing else is needed
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_THAT(plan.items, ElementsAre(StepItem{1, 15}));  // one was meant for the decode
  Table kept(5);
  kept.Add(1, 4, 30).Add(2, 5, 1, /*kept_blocks=*/2);
  EXPECT_THAT(kept.Plan(16).items, ElementsAre(StepItem{1, 8}, StepItem{2, 1}));
}

TEST(Scheduler, StartsAPromptOnlyWhenAllOfItFitsBesideTheDecodes) {
  EXPECT_THAT(Table(5).Decode(1).Prompt(2, 8).Plan(8).items, ElementsAre(StepItem{1, 1}, StepItem{2, 7}));
  EXPECT_THAT(Table(4).Decode(1).Prompt(2, 8).Plan(8).items, ElementsAre(StepItem{1, 1}));
  // The first in rank starts where it can.
  EXPECT_THAT(Table(4).Prompt(1, 40).Plan(20).items, ElementsAre(StepItem{1, 16}));
}

TEST(Scheduler, StartsNobodyBeforeAHigherOneThatWaitsForBlocks) {
  EXPECT_THAT(Table(6).Decode(1).Prompt(2, 20).Prompt(3, 4).Plan(8).items, ElementsAre(StepItem{1, 1}));
}

TEST(Scheduler, LetsAHigherRankStartAtTheCostOfALowerOne) {
  Table table(4);
  table.Decode(5, 4).Prompt(7, 4).Decode(2, 8);  // 7 was given priority over 2
  const StepPlan plan = table.Plan(8);
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_THAT(plan.items, ElementsAre(StepItem{5, 1}, StepItem{7, 4}));
}

TEST(Scheduler, CountsTheCopyThatAWriterOfASharedBlockTakes) {
  Table table(3);
  table.Decode(1, 6).Fork(2);  // both go on writing the second block
  const StepPlan plan = table.Plan(8);
  EXPECT_THAT(plan.preempted, IsEmpty());
  EXPECT_THAT(plan.items, ElementsAre(StepItem{1, 1}, StepItem{2, 1}));  // 2 has it to itself then
  Table full(2);
  full.Decode(1, 6).Fork(2);
  EXPECT_THAT(full.Plan(8).preempted, ElementsAre(2));
  EXPECT_THAT(full.Plan(8).items, ElementsAre(StepItem{1, 1}));
}

TEST(Scheduler, FreesASharedBlockOnlyWithItsLastHolder) {
  Table table(4);
  table.Decode(1, 8).Decode(2, 8).Fork(3);
  const StepPlan plan = table.Plan(8);
  EXPECT_THAT(plan.preempted, ElementsAre(3, 2));
  EXPECT_THAT(plan.items, ElementsAre(StepItem{1, 1}));
}

TEST(Scheduler, ReservesForAHandoffFromTheLastInRank) {
  Table table(8);
  table.Decode(1, 8).Decode(2, 8).Decode(3, 8);
  EXPECT_THAT(table.Reserve(2), IsEmpty());
  EXPECT_THAT(table.Reserve(3), ElementsAre(3));
  EXPECT_THAT(table.Reserve(6), ElementsAre(3, 2));
}

// The bounds that the header states, over random states with blocks for all.
TEST(Scheduler, SaysHowLongADecodeWaits) {
  EXPECT_EQ(MostStepsToAToken(64, 256), 1);
  EXPECT_EQ(MostStepsToAToken(192, 256), 1);
  EXPECT_EQ(MostStepsToAToken(193, 256), 2);
  EXPECT_EQ(MostStepsToAToken(3, 2), 3);
  EXPECT_EQ(MostStepsToAToken(3, 1), 6);
}

TEST(Scheduler, NeverExceedsTheBudgetAndStarvesNobody) {
  std::mt19937 random(20260711);
  for (int round = 0; round < 2000; ++round) {
    Table table(2000);
    const int count = 1 + static_cast<int>(random() % 40);
    std::vector<int64_t> left;
    int64_t decodes = 0;
    int64_t prompts = 0;
    for (int i = 0; i < count; ++i) {
      left.push_back(random() % 2 == 0 ? 1 : 2 + static_cast<int64_t>(random() % 50));
      (left.back() == 1 ? decodes : prompts) += left.back();
      table.Add(i, 5, left.back());
    }
    const int64_t budget = 4 + static_cast<int64_t>(random() % 60);
    const int64_t bound = std::max<int64_t>(1, MostStepsToAToken(decodes, budget));
    const uint64_t first_step = 1 + random() % 1000;
    std::map<uint64_t, int> ran;
    for (int64_t s = 0; s < bound; ++s) {
      int64_t tokens = 0;
      int64_t of_prompts = 0;
      for (const StepItem& item : table.Plan(budget, first_step + s).items) {
        ASSERT_GT(item.tokens, 0);
        tokens += item.tokens;
        if (left[item.id] > 1) of_prompts += item.tokens;
        ++ran[item.id];
      }
      ASSERT_LE(tokens, budget);
      ASSERT_GE(of_prompts, std::min(prompts, budget / 4));
    }
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(left[i] > 1 || ran[i] >= 1) << "decode starved for " << bound << " steps";
    }
  }
}

TEST(Scheduler, GivesTheTurnOfADecodeWithoutABlockToAnother) {
  // A pool of five blocks: 1 has room in its own, 2 needs another one, and nobody behind it has any.
  Table table(5);
  table.Decode(1, 5).Decode(2, 12).Prompt(3, 8);
  for (uint64_t step = 2; step < 8; step += 2) {
    EXPECT_THAT(table.Plan(1, step).items, ElementsAre(StepItem{1, 1})) << step;
  }
}

TEST(Scheduler, GivesSpareSequencesOnlyWhatOthersLeave) {
  Table prompt(64);
  prompt.Decode(1).Decode(2).Decode(3).Decode(4).Prompt(5, 20);
  EXPECT_THAT(prompt.Plan(4).items,
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}, StepItem{3, 1}, StepItem{5, 1}));
  Table spare(64);
  spare.Decode(1).Decode(2).Decode(3).Decode(4).Spare(5, 20);
  EXPECT_THAT(spare.Plan(4).items,
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}, StepItem{3, 1}, StepItem{4, 1}));
  EXPECT_THAT(spare.Plan(6).items,
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}, StepItem{3, 1}, StepItem{4, 1}, StepItem{5, 2}));
}

TEST(Scheduler, PlansNothingForAPausedSequenceAndMayTakeItsBlocks) {
  EXPECT_THAT(Table(9).Decode(1).Pause().Decode(2).Plan(8).items, ElementsAre(StepItem{2, 1}));
  EXPECT_THAT(Table(9).Prompt(1, 4).Pause().Prompt(2, 9).Plan(8).items, ElementsAre(StepItem{2, 8}));
  EXPECT_THAT(Table(9).Decode(1).Pause().Plan(8).items, IsEmpty());
  // Nothing of the budget is kept for a prompt that is paused.
  EXPECT_THAT(Table(9).Decode(1).Decode(2).Prompt(3, 9).Pause().Plan(2).items,
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}));
  const StepPlan plan = Table(4).Decode(1, 8).Decode(2, 8).Pause().Plan(8);
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_THAT(plan.items, ElementsAre(StepItem{1, 1}));
}

}  // namespace
}  // namespace aludel
