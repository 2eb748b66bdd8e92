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

TEST(Trials, ABusyDayPaysForAFewTriesOfTheNight) {
  Trials trials;
  for (int i = 0; i < 100000; ++i) trials.Earn(0.5);
  EXPECT_NEAR(trials.seconds(), 1, 1e-9);
  int tried = 0;
  for (; trials.seconds() >= 0.5; ++tried) trials.Spend(0.5);
  EXPECT_LE(tried, 2);
}

TEST(Trials, OneLongRequestPaysForNoManyTriesAndShorterOnesKeepLess) {
  Trials trials;
  trials.Earn(100);
  EXPECT_NEAR(trials.seconds(), 2, 1e-9) << "its share";
  trials.Earn(0.5);
  EXPECT_NEAR(trials.seconds(), 1.99, 1e-9) << "more than a hundred such earn";
  for (int i = 0; i < 1000; ++i) trials.Earn(0.5);
  EXPECT_NEAR(trials.seconds(), 1, 1e-9);
}

TEST(Trials, OnlyAPlanThatTriesCosts) {
  Trials trials;
  trials.Earn(50);
  trials.Account({.reason = PlanReason::kCached, .predicted_ttft = 1, .try_seconds = 0.5});
  trials.Account({.reason = PlanReason::kArena, .try_seconds = 0.5});
  EXPECT_NEAR(trials.seconds(), 1, 1e-9) << "what became another plan has tried nothing";
  trials.Account({.reason = PlanReason::kExplore, .predicted_ttft = 1, .try_seconds = 0.5});
  EXPECT_NEAR(trials.seconds(), 0.5, 1e-9);
  trials.Account({.reason = PlanReason::kFastest, .predicted_ttft = 1});
  EXPECT_NEAR(trials.seconds(), 0.52, 1e-9);
}

}  // namespace
}  // namespace aludel
