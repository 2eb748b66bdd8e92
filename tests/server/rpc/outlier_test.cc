#include "server/rpc/outlier.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

// What came at a time, and whether the server is left out just after it.
struct Step {
  double at;
  enum { kFails, kServes, kNothing } came;
  bool left_out;
};

struct Case {
  const char* what;
  std::vector<Step> steps;
};

TEST(Outlier, IsLeftOutAfterThreeFailuresInARowAndEachTimeForTwiceAsLong) {
  constexpr auto kFails = Step::kFails;
  constexpr auto kServes = Step::kServes;
  constexpr auto kNothing = Step::kNothing;
  const Case cases[] = {
      {"two failures are not three", {{0, kFails, false}, {1, kFails, false}}},
      {"three are",
       {{0, kFails, false},
        {1, kFails, false},
        {2, kFails, true},
        {6.9, kNothing, true},
        {7.1, kNothing, false}}},
      {"an answer between them begins anew",
       {{0, kFails, false},
        {1, kFails, false},
        {2, kServes, false},
        {3, kFails, false},
        {4, kFails, false},
        {5, kFails, true}}},
      {"what was asked before it was left out says no more",
       {{0, kFails, false},
        {0, kFails, false},
        {0, kFails, true},
        {1, kFails, true},
        {5.1, kNothing, false}}},
      {"the next failure leaves it out for ten seconds, and the next for twenty",
       {{0, kFails, false},
        {0, kFails, false},
        {0, kFails, true},
        {6, kFails, true},
        {15.9, kNothing, true},
        {16.1, kFails, true},
        {36, kNothing, true},
        {36.2, kNothing, false}}},
      {"an answer forgives it",
       {{0, kFails, false},
        {0, kFails, false},
        {0, kFails, true},
        {6, kServes, false},
        {7, kFails, false},
        {8, kFails, false}}},
  };
  for (const Case& test : cases) {
    Outlier outlier;
    for (const Step& step : test.steps) {
      if (step.came == kFails) outlier.Failed(step.at);
      if (step.came == kServes) outlier.Succeeded();
      EXPECT_EQ(outlier.ejected(step.at), step.left_out) << test.what << ", at " << step.at;
    }
  }
}

TEST(Outlier, IsNeverLeftOutForMoreThanEightySeconds) {
  Outlier outlier;
  double now = 0;
  for (int i = 0; i < 20; ++i) outlier.Failed(now += 100);
  EXPECT_TRUE(outlier.ejected(now + 79));
  EXPECT_FALSE(outlier.ejected(now + 81));
}

TEST(Outlier, MostOfThemAreNotLeftOut) {
  EXPECT_FALSE(Outlier::MayEject(0, 3));
  EXPECT_TRUE(Outlier::MayEject(1, 3));
  EXPECT_TRUE(Outlier::MayEject(1, 2));
  EXPECT_FALSE(Outlier::MayEject(1, 1));
  EXPECT_FALSE(Outlier::MayEject(2, 3));
}

}  // namespace
}  // namespace aludel
