#include "server/bench/route/moves.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(ShallMove, OnlyWhatWouldBeLateAndIsInTimeElsewhereByMoreThanTheMargin) {
  constexpr double kObjective = 5, kMargin = .5;
  struct Case {
    const char* what;
    WaitingRequest request;
    bool moves;
  };
  const Case cases[] = {
      {"it is in time where it is", {.waited = 1, .remaining = 4, .there = .1}, false},
      {"it would be late", {.waited = 1, .remaining = 4.1, .there = .1}, true},
      {"it is late there, too", {.waited = 4, .remaining = 4, .there = 1.1}, false},
      {"it has waited too long for any", {.waited = 6, .remaining = 4, .there = .1}, false},
      {"the gain is within the margin", {.waited = 4, .remaining = 1.4, .there = .9}, false},
      {"the gain is above it", {.waited = 4, .remaining = 1.5, .there = .9}, true},
      {"others lose as much as it gains", {.waited = 4, .remaining = 2, .there = .9, .more_work = .6}, false},
      {"the cache there has more", {.waited = 4, .remaining = 1.4, .there = .9, .more_work = -3}, false},
  };
  for (const Case& test : cases) {
    EXPECT_EQ(ShallMove(test.request, kObjective, kMargin), test.moves) << test.what;
  }
}

}  // namespace
}  // namespace aludel
