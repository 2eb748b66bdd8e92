#include "runtime/bench/halves_spread.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(HalvesSpread, IsThatOfTheMediansOfEveryOtherValue) {
  EXPECT_FALSE(HalvesSpread({}).has_value());
  EXPECT_FALSE(HalvesSpread({1.0}).has_value());
  EXPECT_DOUBLE_EQ(HalvesSpread({1.0, 1.0}).value(), 0.0);
  EXPECT_DOUBLE_EQ(HalvesSpread({9.0, 11.0}).value(), 0.2);
  // 9 of 9, 1 and 100, and 11 of 11 and 11.
  EXPECT_DOUBLE_EQ(HalvesSpread({9.0, 11.0, 1.0, 11.0, 100.0}).value(), 0.2);
}

}  // namespace
}  // namespace aludel
