#include "runtime/evaluate/score.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(AnswerText, IsTheAnswerMemberOfAJsonObjectElseTheText) {
  EXPECT_EQ(AnswerText("{\"answer\": \"by ferry\"}"), "by ferry");
  EXPECT_EQ(AnswerText("{\"answer\": 3}"), "{\"answer\": 3}");
  EXPECT_EQ(AnswerText("{\"answer\": \"by fer"), "{\"answer\": \"by fer");
  EXPECT_EQ(AnswerText("1927"), "1927");
}

TEST(AnswerF1, IgnoresCaseAndPunctuation) {
  EXPECT_EQ(AnswerF1("{\"answer\": \"Elmley.\"}", {"answer elmley"}), 1);
}

TEST(AnswerF1, CountsSharedWordsOnce) {
  // Two of three found words are wanted, two of four wanted words are found.
  EXPECT_NEAR(AnswerF1("red red car", {"the red old car"}), 2 * (2.0 / 3) * 0.5 / (2.0 / 3 + 0.5), 1e-12);
}

TEST(AnswerF1, TakesTheBestAcceptedAnswer) { EXPECT_EQ(AnswerF1("by ferry", {"train", "by ferry"}), 1); }

TEST(AnswerF1, EmptyAgreesOnlyWithEmpty) {
  EXPECT_EQ(AnswerF1("", {"1927"}), 0);
  EXPECT_EQ(AnswerF1("!", {"?"}), 1);
  EXPECT_EQ(AnswerF1("1927", {}), 0);
}

TEST(AnswerExactMatch, WantsTheSameWordsInOrder) {
  EXPECT_EQ(AnswerExactMatch("Quantum Press", {"quantum press"}), 1);
  EXPECT_EQ(AnswerExactMatch("press quantum", {"quantum press"}), 0);
}

TEST(Percentile, IsTheNearestRank) {
  EXPECT_EQ(Percentile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(Percentile({5, 1, 4, 2, 3}, 0.95), 5);
  EXPECT_EQ(Percentile({}, 0.5), 0);
}

TEST(BootstrapMean, CoversTheMeanAndRepeatsItself) {
  std::vector<double> values;
  for (int i = 0; i < 200; ++i) values.push_back(i % 2);
  const Interval interval = BootstrapMean(values, {}, 7);
  // The standard error of a fair coin over 200 throws is .035.
  EXPECT_NEAR(interval.low, 0.5 - 1.96 * 0.0354, 0.02);
  EXPECT_NEAR(interval.high, 0.5 + 1.96 * 0.0354, 0.02);
  EXPECT_EQ(BootstrapMean(values, {}, 7).low, interval.low);
}

TEST(BootstrapMean, WeighsItemsWhereAsked) {
  const Interval interval = BootstrapMean({10, 20}, {5, 10}, 1);
  EXPECT_EQ(interval.low, 2);
  EXPECT_EQ(interval.high, 2);
}

}  // namespace
}  // namespace aludel
