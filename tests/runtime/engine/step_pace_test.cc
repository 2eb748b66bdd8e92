#include "runtime/engine/step_pace.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(StepPace, LeavesTheBudgetAloneWhileStepsAreShort) {
  StepPace pace(256);
  for (int i = 0; i < 10; ++i) pace.Observe(256, 0.4, /*shared=*/true);
  EXPECT_EQ(pace.budget(), 256);
}

TEST(StepPace, MakesStepsSmallerThatKeepOthersWaiting) {
  StepPace pace(256);
  pace.Observe(256, 2.0, /*shared=*/true);
  EXPECT_EQ(pace.budget(), 128);
  pace.Observe(128, 0.9, /*shared=*/true);
  EXPECT_EQ(pace.budget(), 128);
  pace.Observe(128, 30.0, /*shared=*/true);
  EXPECT_EQ(pace.budget(), 64);  // a quarter
}

TEST(StepPace, GrowsBackWhenTheMachineIsFree) {
  StepPace pace(256);
  pace.Observe(256, 30.0, /*shared=*/true);
  pace.Observe(64, 0.2, /*shared=*/true);
  EXPECT_EQ(pace.budget(), 128);
  pace.Observe(1, 0.01, /*shared=*/true);
  EXPECT_EQ(pace.budget(), 256);
}

TEST(StepPace, NobodyWaitsBesideASequenceThatIsAlone) {
  StepPace pace(256);
  pace.Observe(256, 3.0, /*shared=*/false);
  EXPECT_EQ(pace.budget(), 256);
  pace.Observe(256, 3.0, /*shared=*/true);
  pace.Observe(85, 1.0, /*shared=*/false);
  EXPECT_EQ(pace.budget(), 256);
}

}  // namespace
}  // namespace aludel
