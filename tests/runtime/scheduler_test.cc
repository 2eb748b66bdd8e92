#include "runtime/scheduler.h"

#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {

bool operator==(const StepItem& a, const StepItem& b) { return a.id == b.id && a.tokens == b.tokens; }

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Scheduler, PlansNothingForNobody) { EXPECT_THAT(PlanStep({}, 8, 0), IsEmpty()); }

TEST(Scheduler, CutsAPromptIntoChunksOfTheBudget) {
  const SchedulerSequence prompt{1, 20};
  EXPECT_THAT(PlanStep({&prompt, 1}, 8, 0), ElementsAre(StepItem{1, 8}));
}

TEST(Scheduler, DecodesFirstAndFillsTheRestWithPrompts) {
  const SchedulerSequence sequences[] = {{1, 0}, {2, 100}, {3, 0}, {4, 100}};
  EXPECT_THAT(PlanStep(sequences, 8, 0), ElementsAre(StepItem{1, 1}, StepItem{2, 6}, StepItem{3, 1}));
}

TEST(Scheduler, KeepsAQuarterOfTheBudgetForPromptsAndRotatesDecodes) {
  const SchedulerSequence sequences[] = {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 9}};
  EXPECT_THAT(PlanStep(sequences, 4, 0),
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}, StepItem{3, 1}, StepItem{5, 1}));
  EXPECT_THAT(PlanStep(sequences, 4, 1),
              ElementsAre(StepItem{1, 1}, StepItem{2, 1}, StepItem{4, 1}, StepItem{5, 1}));
}

TEST(Scheduler, SharesABudgetOfOneByTurns) {
  const SchedulerSequence sequences[] = {{1, 0}, {2, 9}};
  EXPECT_THAT(PlanStep(sequences, 1, 0), ElementsAre(StepItem{1, 1}));
  EXPECT_THAT(PlanStep(sequences, 1, 1), ElementsAre(StepItem{2, 1}));
}

// The bounds that the header states, over random states.
TEST(Scheduler, NeverExceedsTheBudgetAndStarvesNobody) {
  std::mt19937 random(20260711);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SchedulerSequence> sequences;
    const int count = 1 + static_cast<int>(random() % 40);
    int decodes = 0;
    for (int i = 0; i < count; ++i) {
      const bool decode = random() % 2 == 0;
      decodes += decode ? 1 : 0;
      sequences.push_back({static_cast<uint64_t>(i), decode ? 0 : 1 + static_cast<int64_t>(random() % 50)});
    }
    const int64_t budget = 4 + static_cast<int64_t>(random() % 60);
    const int64_t slots = budget - budget / 4;
    const int64_t bound = std::max<int64_t>(1, (decodes + slots - 1) / slots);
    const uint64_t first_step = random();
    std::map<uint64_t, int> ran;
    for (int64_t s = 0; s < bound; ++s) {
      int64_t tokens = 0;
      int64_t oldest_prompt = -1;
      for (const SchedulerSequence& sequence : sequences) {
        if (sequence.prompt_left > 0 && oldest_prompt < 0) oldest_prompt = static_cast<int64_t>(sequence.id);
      }
      int64_t oldest_tokens = 0;
      for (const StepItem& item : PlanStep(sequences, budget, first_step + s)) {
        ASSERT_GT(item.tokens, 0);
        tokens += item.tokens;
        ++ran[item.id];
        if (static_cast<int64_t>(item.id) == oldest_prompt) oldest_tokens = item.tokens;
      }
      ASSERT_LE(tokens, budget);
      if (oldest_prompt >= 0) {
        ASSERT_GE(oldest_tokens, std::min(sequences[oldest_prompt].prompt_left, budget / 4));
      }
    }
    for (const SchedulerSequence& sequence : sequences) {
      if (sequence.prompt_left == 0) {
        ASSERT_GE(ran[sequence.id], 1) << "decode starved for " << bound << " steps";
      }
    }
  }
}

}  // namespace
}  // namespace aludel
