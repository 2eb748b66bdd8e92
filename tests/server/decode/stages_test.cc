#include "server/decode/stages.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

double Sum(const StageSeconds& s) {
  return s.queue + s.prefill + s.encode + s.transfer + s.reconstruct + s.recompute + s.first_decode;
}

TEST(Stages, WaitingThatTheProducerExplainsIsItsWorkAndTheRestIsTransfer) {
  const SequenceTimes times{.queue = 1, .await = 10, .reconstruct = 2, .recompute = 3, .ttft = 17};
  const StageSeconds stages =
      SplitFirstToken(times, ProducerSeconds{.queue = 1, .prefill = 5, .encode = 2}, 0.5);
  EXPECT_DOUBLE_EQ(stages.queue, 2.5);
  EXPECT_DOUBLE_EQ(stages.prefill, 5);
  EXPECT_DOUBLE_EQ(stages.encode, 2);
  EXPECT_DOUBLE_EQ(stages.transfer, 2);
  EXPECT_DOUBLE_EQ(stages.first_decode, 1);
  EXPECT_DOUBLE_EQ(stages.ttft, 17.5);
  EXPECT_DOUBLE_EQ(Sum(stages), stages.ttft);
}

TEST(Stages, WorkThatOverlappedOursCountsOnlyWhereWeWaited) {
  const SequenceTimes times{.await = 4, .reconstruct = 4, .ttft = 8};
  const StageSeconds stages = SplitFirstToken(times, ProducerSeconds{.prefill = 6, .encode = 2}, 0);
  EXPECT_DOUBLE_EQ(stages.prefill, 3);
  EXPECT_DOUBLE_EQ(stages.encode, 1);
  EXPECT_DOUBLE_EQ(stages.transfer, 0);
  EXPECT_DOUBLE_EQ(Sum(stages), 8);
}

TEST(Stages, AnUnknownProducerIsAllTransfer) {
  const SequenceTimes times{.prefill = 2, .await = 5, .ttft = 8};
  const StageSeconds stages = SplitFirstToken(times, std::nullopt, 0);
  EXPECT_DOUBLE_EQ(stages.transfer, 5);
  EXPECT_DOUBLE_EQ(stages.prefill, 2);
  EXPECT_DOUBLE_EQ(Sum(stages), 8);
}

}  // namespace
}  // namespace aludel
