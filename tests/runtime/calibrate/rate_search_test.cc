#include "runtime/calibrate/rate_search.h"

#include <random>

#include "gtest/gtest.h"

namespace aludel {
namespace {

// What a search finds where `needed` bytes meet the loss and a coder guesses `caution` times as many.
struct Found {
  double bytes;
  int trials = 0;
};

Found Search(double start, double needed, double caution) {
  Found found{start};
  RateSearch search(start);
  while (const auto rate = search.Next(needed * caution)) {
    ++found.trials;
    EXPECT_LT(*rate, found.bytes);
    if (*rate >= needed) {
      search.Met(*rate);
      found.bytes = *rate;
    } else {
      search.Missed(*rate);
    }
  }
  return found;
}

TEST(RateSearch, EndsWithinAThirdOfTheFewestBytesInAHandfulOfFits) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> share(0.02, 1), caution(1, 4);
  for (int i = 0; i < 2000; ++i) {
    const double needed = 256 * share(random);
    const Found found = Search(256, needed, caution(random));
    EXPECT_GE(found.bytes, needed);
    EXPECT_LE(found.bytes, 1.33 * needed) << needed;
    EXPECT_LE(found.trials, 6);
  }
}

TEST(RateSearch, TriesFewerBytesEvenWhereTheGuessIsNoHelp) {
  EXPECT_LT(RateSearch(256).Next(256).value(), 256);
  EXPECT_LT(RateSearch(256).Next(1e9).value(), 256);
}

TEST(RateSearch, DoesNotFallIntoNothingOnAWildGuess) { EXPECT_GT(RateSearch(256).Next(0).value(), 32); }

TEST(RateSearch, EndsWhereNothingIsLeftToSave) {
  RateSearch search(3);
  search.Met(2.2);
  EXPECT_FALSE(search.Next(0.1).has_value());
}

TEST(RateSearch, EndsWhenTheBracketIsTight) {
  RateSearch search(256);
  search.Missed(220);
  EXPECT_FALSE(search.Next(230).has_value());
}

}  // namespace
}  // namespace aludel
