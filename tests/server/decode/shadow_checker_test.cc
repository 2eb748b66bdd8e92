#include "server/decode/shadow_checker.h"

#include <gtest/gtest.h>

#include <cmath>

namespace aludel {
namespace {

// The token itself in front, as the engine gives it.
std::vector<TokenLogprob> List(std::vector<std::pair<int32_t, double>> probabilities) {
  std::vector<TokenLogprob> list = {{0, 0}};
  for (const auto& [id, p] : probabilities) list.push_back({id, static_cast<float>(std::log(p))});
  return list;
}

TEST(ShadowChecker, FindsNoDivergenceBetweenEqualLists) {
  const auto list = List({{3, .6}, {5, .3}});
  EXPECT_NEAR(PartitionKl(list, list), 0, 1e-6);
}

TEST(ShadowChecker, MeasuresKlWhereBothListsHoldEverything) {
  const double kl = .7 * std::log(.7 / .2) + .3 * std::log(.3 / .8);
  EXPECT_NEAR(PartitionKl(List({{3, .7}, {5, .3}}), List({{5, .8}, {3, .2}})), kl, 1e-5);
}

TEST(ShadowChecker, PutsTokensThatOneListLacksIntoTheRest) {
  // Common: 3 alone; the rest is .4 against .9.
  const double kl = .6 * std::log(.6 / .1) + .4 * std::log(.4 / .9);
  EXPECT_NEAR(PartitionKl(List({{3, .6}, {5, .4}}), List({{7, .9}, {3, .1}})), kl, 1e-5);
  EXPECT_NEAR(PartitionKl(List({{3, 1}}), List({{7, 1}})), 0, 1e-6);  // nothing in common: nothing is known
}

TEST(ShadowChecker, KeepsTheBeginningOfALongAnswer) {
  ShadowAnswer answer;
  for (int i = 0; i < 1000; ++i) answer.Keep({.id = i});
  EXPECT_EQ(answer.tokens.size(), 256u);
  EXPECT_EQ(answer.logprobs.size(), 256u);
}

}  // namespace
}  // namespace aludel
