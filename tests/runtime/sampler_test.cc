#include "runtime/sampler.h"

#include <cmath>
#include <map>

#include "gtest/gtest.h"

namespace aludel {
namespace {

std::map<int32_t, double> Frequencies(const SamplingParams& params, const std::vector<float>& logits,
                                      int draws) {
  Sampler sampler(params);
  std::map<int32_t, double> counts;
  for (int i = 0; i < draws; ++i) counts[sampler.Sample(logits)] += 1.0 / draws;
  return counts;
}

const std::vector<float> kLogits = {1.0f, 3.0f, -2.0f, 2.0f};

TEST(Sampler, IsGreedyAtTemperatureZeroAndBreaksTiesByLowestId) {
  Sampler sampler({.temperature = 0.0});
  EXPECT_EQ(sampler.Sample({1.0f, 5.0f, 5.0f}), 1);
}

TEST(Sampler, DrawsFromTheSoftmaxOfTheTemperedLogits) {
  const double temperature = 1.7;
  double total = 0.0;
  for (float logit : kLogits) total += std::exp(logit / temperature);
  auto seen = Frequencies({.temperature = temperature, .seed = 5}, kLogits, 200000);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    EXPECT_NEAR(seen[static_cast<int32_t>(i)], std::exp(kLogits[i] / temperature) / total, 0.005);
  }
}

TEST(Sampler, KeepsTheTopK) {
  auto seen = Frequencies({.temperature = 2.0, .top_k = 2, .seed = 5}, kLogits, 20000);
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_NEAR(seen[1] / seen[3], std::exp(0.5), 0.1);
}

TEST(Sampler, KeepsTheSmallestSetThatReachesTopP) {
  // Probabilities at temperature 1: .66, .24, .09, .004.
  EXPECT_EQ(Frequencies({.temperature = 1.0, .top_p = 0.6, .seed = 5}, kLogits, 5000).size(), 1u);
  EXPECT_EQ(Frequencies({.temperature = 1.0, .top_p = 0.7, .seed = 5}, kLogits, 5000).size(), 2u);
}

TEST(Sampler, RepeatsItselfWithTheSameSeedAndDiffersWithAnother) {
  const std::vector<float> flat(1000, 0.0f);
  const auto draw = [&flat](uint64_t seed) {
    Sampler sampler({.temperature = 1.0, .seed = seed});
    std::vector<int32_t> tokens;
    for (int i = 0; i < 20; ++i) tokens.push_back(sampler.Sample(flat));
    return tokens;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

}  // namespace
}  // namespace aludel
