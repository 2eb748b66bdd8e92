#include "runtime/engine/sampling/stop_matcher.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(StopMatcher, PassesTextThroughWithoutStops) {
  StopMatcher matcher({""});
  EXPECT_EQ(matcher.Push("abc"), "abc");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, FindsAStopStringAcrossPieces) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("one E"), "one ");
  EXPECT_EQ(matcher.Push("N"), "");
  EXPECT_EQ(matcher.Push("D two"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.Push("three"), "");
}

TEST(StopMatcher, ReleasesWhatTurnedOutToBeOrdinary) {
  StopMatcher matcher({"END"});
  EXPECT_EQ(matcher.Push("EN"), "");
  EXPECT_EQ(matcher.Push("Ex"), "ENEx");
  EXPECT_EQ(matcher.Push("E"), "");
  EXPECT_EQ(matcher.Flush(), "E");
}

TEST(StopMatcher, TakesTheEarliestOfSeveral) {
  StopMatcher matcher({"cd", "b"});
  EXPECT_EQ(matcher.Push("abcd"), "a");
  EXPECT_EQ(matcher.match(), "b");
}

TEST(StopMatcher, IncludesWhatStopped) {
  StopMatcher matcher({"END"}, /*include=*/true);
  EXPECT_EQ(matcher.Push("one EN"), "one ");
  EXPECT_EQ(matcher.Push("D two"), "END");
  EXPECT_EQ(matcher.Push("three"), "");
}

TEST(StopMatcher, FindsWhatBeginsInTextThatPassed) {
  for (const bool include : {false, true}) {
    StopMatcher matcher({"ABC"}, include);
    EXPECT_EQ(matcher.Pass("ABC xA"), "ABC xA");
    EXPECT_EQ(matcher.Push("B"), "");
    EXPECT_EQ(matcher.Push("Cd"), include ? "BC" : "");
    EXPECT_TRUE(matcher.matched());
  }
  StopMatcher other({"ABC"});
  EXPECT_EQ(other.Pass("A"), "A");
  EXPECT_EQ(other.Push("B"), "");
  EXPECT_EQ(other.Push("x"), "Bx");
  EXPECT_EQ(other.Push("BC"), "BC");  // the A has been left behind
  EXPECT_FALSE(other.matched());
}

}  // namespace
}  // namespace aludel
