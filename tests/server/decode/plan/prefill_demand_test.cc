#include "server/decode/plan/prefill_demand.h"

#include <cmath>

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(PrefillDemand, IsTheRateOverWhatAServerComputes) {
  PrefillDemand demand;
  EXPECT_EQ(demand.At(0, 1000, 0), 0);
  double last = 0;
  for (int i = 1; i <= 60; ++i) last = demand.At(21'000 * i, 1000, 10 * i);
  EXPECT_NEAR(last, 3, 0.01);
  // A minute later without requests about a third of it is left.
  EXPECT_NEAR(demand.At(21'000 * 60, 1000, 660), 3 * std::exp(-1), 0.02);
}

TEST(PrefillDemand, ServersThatDoNotSayHowFastTheyAreLeaveWhatWasSaid) {
  PrefillDemand demand;
  EXPECT_EQ(demand.At(0, 0, 0), 0);
  EXPECT_EQ(demand.At(1e6, 0, 600), 0);
  const double known = demand.At(2e6, 1000, 1200);
  EXPECT_GT(known, 2);
  EXPECT_NEAR(demand.At(3e6, 0, 1800), known, 0.01);
  // Two scrapes at one moment.
  EXPECT_NEAR(demand.At(3e6, 0, 1800), known, 0.01);
}

}  // namespace
}  // namespace aludel
