#include "server/decode/plan/trials.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(Trials, LeaveAPlaceForTheHedgeOfEach) {
  Trials trials;
  EXPECT_TRUE(trials.Begin(/*hedges=*/0, /*places=*/2));
  EXPECT_TRUE(trials.Begin(0, 2));
  EXPECT_FALSE(trials.Begin(0, 2));  // neither hedge runs yet, but both may
  trials.End();
  EXPECT_FALSE(trials.Begin(1, 2));
  EXPECT_TRUE(trials.Begin(0, 2));
  trials.End();
  trials.End();
  EXPECT_FALSE(trials.Begin(2, 2));
  EXPECT_FALSE(trials.Begin(0, 0));
}

TEST(Trials, CostAShareOfWhatOthersWaitFor) {
  Trials trials;
  EXPECT_EQ(trials.seconds(), 0);
  for (int i = 0; i < 100; ++i) trials.Earn(0.5);
  EXPECT_NEAR(trials.seconds(), 1, 1e-9);
  trials.Spend(0.75);
  trials.Spend(0.75);
  EXPECT_NEAR(trials.seconds(), -0.5, 1e-9);
}

}  // namespace
}  // namespace aludel
