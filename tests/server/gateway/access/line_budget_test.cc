#include "server/gateway/access/line_budget.h"

#include <gtest/gtest.h>

namespace aludel {
namespace {

TEST(LineBudget, BoundsLinesOfEachSecondAndSaysHowManyWereLeftOut) {
  absl::Time now = absl::FromUnixSeconds(1000);
  LineBudget budget(2, [&] { return now; });
  EXPECT_EQ(budget.Take(), 0);
  EXPECT_EQ(budget.Take(), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(budget.Take(), std::nullopt);
  now += absl::Seconds(1);
  EXPECT_EQ(budget.Take(), 3);
  EXPECT_EQ(budget.Take(), 0);
  EXPECT_EQ(budget.Take(), std::nullopt);
}

}  // namespace
}  // namespace aludel
