#include "runtime/engine/sequence.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

std::unique_ptr<Sequence> NewSequence() {
  auto group = std::make_shared<ChoiceGroup>();
  group->sampling.choices = 3;
  auto sequence = std::make_unique<Sequence>(std::vector<int32_t>{5, 6, 7}, /*max_completion=*/9,
                                             /*listener=*/nullptr, group, 0, /*tokenizer=*/nullptr);
  sequence->id = 40;
  sequence->prompt_end = 3;
  sequence->priority = -2;
  sequence->deadline = SteadyClock::time_point(std::chrono::hours(7));
  sequence->fell_back = true;
  sequence->fallback_reason = absl::AbortedError("late");
  sequence->times.prefill = 0.5;
  return sequence;
}

TEST(Sequence, ForksAChoiceThatGoesOnWhereTheFirstIs) {
  const auto first = NewSequence();
  const auto fork = ForkChoice(*first, 2, nullptr);
  EXPECT_EQ(fork->id, 42);
  EXPECT_EQ(fork->choice, 2);
  EXPECT_EQ(fork->group, first->group);
  EXPECT_EQ(fork->tokens, first->tokens);
  EXPECT_EQ(fork->max_completion, 9);
  EXPECT_EQ(fork->prompt_end, 3);
  EXPECT_EQ(fork->priority, -2);
  EXPECT_EQ(fork->deadline, first->deadline);
  EXPECT_TRUE(fork->fell_back);
  EXPECT_EQ(fork->fallback_reason, first->fallback_reason);
  EXPECT_EQ(fork->times.prefill, 0.5);
}

TEST(Sequence, ChargesAStepByItsShareOfTheTokens) {
  const auto sequence = NewSequence();
  sequence->times = {};
  while (sequence->clock.Take() == 0) {
  }
  sequence->ChargeStep(/*step_own_tokens=*/1, /*step_tokens=*/4);
  EXPECT_GE(sequence->times.prefill, 0);
  EXPECT_NEAR(sequence->times.queue, 3 * sequence->times.prefill, 1e-9);
  EXPECT_EQ(sequence->times.recompute, 0);
  sequence->handed_over = 2;
  sequence->ChargeStep(4, 4);
  EXPECT_NEAR(sequence->times.queue, 3 * sequence->times.prefill, 1e-9);
}

TEST(Sequence, EndsWithItsTimesAndTheReason) {
  const auto sequence = NewSequence();
  sequence->tokens.push_back(8);
  sequence->stop_id = 8;
  sequence->cached_tokens = 2;
  // Without a tokenizer there is no text to release: as one that fails.
  const SequenceResult result = EndSequence(*sequence, /*ok=*/false, FinishReason::kLength);
  EXPECT_EQ(result.reason, FinishReason::kLength);
  EXPECT_EQ(result.prompt_tokens, 3);
  EXPECT_EQ(result.completion_tokens, 1);
  EXPECT_EQ(result.stop_id, 8);
  EXPECT_EQ(result.cached_tokens, 2);
  EXPECT_TRUE(result.fell_back);
  EXPECT_EQ(result.fallback_reason, sequence->fallback_reason);
  EXPECT_EQ(result.tail_text, "");
  EXPECT_GT(result.times.ttft, 0);
  EXPECT_GT(result.times.sample, 0);
}

}  // namespace
}  // namespace aludel
