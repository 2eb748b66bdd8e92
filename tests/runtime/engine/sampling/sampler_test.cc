#include "runtime/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

// The distribution that a Sampler shall draw from, written down as the field defines it: in double, over all
// tokens, sorted as often as needed.
std::map<int32_t, double> Reference(const SamplingParams& params, const std::vector<float>& logits,
                                    const std::vector<int32_t>& prompt, const std::vector<int32_t>& generated,
                                    const std::vector<int32_t>& forbidden) {
  std::vector<double> row(logits.begin(), logits.end());
  for (const LogitBias& bias : params.logit_bias) row[bias.id] += bias.bias;
  for (size_t id = 0; id < row.size(); ++id) {
    const auto times = std::count(generated.begin(), generated.end(), static_cast<int32_t>(id));
    const bool held = times > 0 || std::count(prompt.begin(), prompt.end(), static_cast<int32_t>(id)) > 0;
    if (held)
      row[id] = row[id] > 0 ? row[id] / params.repetition_penalty : row[id] * params.repetition_penalty;
    if (times > 0) row[id] -= params.presence_penalty + params.frequency_penalty * static_cast<double>(times);
  }
  std::vector<std::pair<double, int32_t>> kept;
  for (size_t id = 0; id < row.size(); ++id) {
    if (std::count(forbidden.begin(), forbidden.end(), static_cast<int32_t>(id)) > 0) continue;
    kept.emplace_back(std::exp(row[id] / params.temperature), static_cast<int32_t>(id));
  }
  std::sort(kept.begin(), kept.end(), [](auto a, auto b) { return a.first > b.first; });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < kept.size()) kept.resize(params.top_k);
  const auto sum = [&kept] {
    double total = 0;
    for (const auto& [weight, id] : kept) total += weight;
    return total;
  };
  double total = sum();
  size_t count = 0;
  for (double mass = 0; count < kept.size() && mass < params.top_p * total;) mass += kept[count++].first;
  kept.resize(std::max<size_t>(count, 1));
  while (kept.back().first < params.min_p * kept.front().first) kept.pop_back();
  total = sum();
  std::map<int32_t, double> probabilities;
  for (const auto& [weight, id] : kept) probabilities[id] = weight / total;
  return probabilities;
}

class SamplerTest : public ::testing::Test {
 protected:
  static std::vector<float> RandomLogits(size_t vocab, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = normal(random);
    return logits;
  }
  static std::vector<uint64_t> Mask(size_t vocab, const std::vector<int32_t>& forbidden) {
    std::vector<uint64_t> allowed((vocab + 63) / 64, ~uint64_t{0});
    for (const int32_t id : forbidden) allowed[id / 64] &= ~(uint64_t{1} << (id % 64));
    return allowed;
  }
};

// Every token of one row is drawn anew from the same state, with the seeds as the random variable.
TEST_F(SamplerTest, DrawsFromTheDistributionOfAnIndependentReference) {
  constexpr size_t kVocab = 70;
  const std::vector<float> logits = RandomLogits(kVocab, 3);
  const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const std::vector<int32_t> prompt = {best, 1, 2, 2};
  const std::vector<SamplingParams> cases = {
      {.temperature = 1.0},
      {.temperature = 1.7},
      {.temperature = 0.4, .top_p = 0.8},
      {.temperature = 1.0, .top_k = 5},
      {.temperature = 1.0, .top_k = 20, .top_p = 0.7},
      {.temperature = 1.3, .min_p = 0.1},
      {.temperature = 1.3, .top_k = 30, .top_p = 0.9, .min_p = 0.05},
      {.temperature = 1.0, .repetition_penalty = 1.5},
      {.temperature = 1.0, .presence_penalty = 1.2, .frequency_penalty = 0.7},
      {.temperature = 1.0, .frequency_penalty = -0.5},
      {.temperature = 1.0, .logit_bias = {{3, 5.0f}, {best, -100.0f}}},
      {.temperature = 1.1,
       .top_k = 40,
       .top_p = 0.95,
       .min_p = 0.01,
       .repetition_penalty = 1.2,
       .presence_penalty = 0.5,
       .frequency_penalty = 0.3,
       .logit_bias = {{9, 2.5f}}},
  };
  constexpr int kDraws = 20000;
  SamplerScratch scratch(kVocab);
  for (size_t c = 0; c < cases.size(); ++c) {
    for (const std::vector<int32_t>& forbidden :
         {std::vector<int32_t>{}, std::vector<int32_t>{0, best, 69}}) {
      // Two tokens are forced first, so that the penalties have something to count.
      const std::vector<int32_t> generated = {7, 7, 12};
      std::map<int32_t, double> seen;
      for (int draw = 0; draw < kDraws; ++draw) {
        Sampler sampler(cases[c], static_cast<uint64_t>(draw), 0, prompt, 8);
        for (const int32_t id : generated) {
          std::vector<uint64_t> only((kVocab + 63) / 64, 0);
          only[id / 64] = uint64_t{1} << (id % 64);
          ASSERT_EQ(sampler.Sample(logits, only, &scratch), id);
        }
        const std::vector<uint64_t> allowed =
            forbidden.empty() ? std::vector<uint64_t>{} : Mask(kVocab, forbidden);
        seen[sampler.Sample(logits, allowed, &scratch)] += 1.0 / kDraws;
      }
      const auto expected = Reference(cases[c], logits, prompt, generated, forbidden);
      for (const auto& [id, share] : seen)
        EXPECT_EQ(expected.count(id), 1u) << "case " << c << " token " << id;
      for (const auto& [id, probability] : expected) {
        // Five standard deviations of the share.
        EXPECT_NEAR(seen[id], probability, 5 * std::sqrt(probability / kDraws) + 1e-4)
            << "case " << c << " token " << id;
      }
    }
  }
}

TEST_F(SamplerTest, CutsALargeVocabularyWhereTheReferenceDoes) {
  constexpr size_t kVocab = 5000;
  const std::vector<float> logits = RandomLogits(kVocab, 11);
  SamplerScratch scratch(kVocab);
  for (const double top_p : {0.3, 0.9}) {
    const SamplingParams params = {.temperature = 1.0, .top_p = top_p};
    const auto expected = Reference(params, logits, {}, {}, {});
    for (int draw = 0; draw < 2000; ++draw) {
      Sampler sampler(params, static_cast<uint64_t>(draw), 0, {}, 1);
      EXPECT_EQ(expected.count(sampler.Sample(logits, {}, &scratch)), 1u);
    }
  }
}

TEST_F(SamplerTest, IsGreedyAtTemperatureZeroAndBreaksTiesByLowestId) {
  SamplerScratch scratch(3);
  for (const double temperature : {0.0, 1e-40}) {
    Sampler sampler({.temperature = temperature}, 0, 0, {}, 1);
    EXPECT_EQ(sampler.Sample({1.0f, 5.0f, 5.0f}, {}, &scratch), 1);
  }
}

TEST_F(SamplerTest, APenaltyThatIsNextToNothingStillLeavesATokenToChoose) {
  SamplerScratch scratch(4);
  const std::vector<int32_t> prompt = {1, 2};
  Sampler sampler({.temperature = 0.8, .repetition_penalty = 1e-300}, 3, 0, prompt, 8);
  for (int i = 0; i < 8; ++i) {
    const int32_t token = sampler.Sample(std::vector<float>{0.5f, 1.0f, 3.0f, -2.0f}, {}, &scratch);
    EXPECT_TRUE(token == 1 || token == 2) << token;  // both beyond measure, and equal
  }
}

TEST_F(SamplerTest, AppliesPenaltiesAndMaskToGreedyChoices) {
  SamplerScratch scratch(4);
  const std::vector<float> logits = {1.0f, 5.0f, 4.5f, 0.0f};
  Sampler sampler({.frequency_penalty = 0.4}, 0, 0, {}, 8);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 5; ++i) tokens.push_back(sampler.Sample(logits, {}, &scratch));
  // 5, then 4.6, then 4.2 against 4.5, then 4.2 against 4.1, then 3.8 against 4.1.
  EXPECT_THAT(tokens, ElementsAre(1, 1, 2, 1, 2));
  EXPECT_EQ(sampler.Sample(logits, std::vector<uint64_t>{0b1001}, &scratch), 0);
}

// What the device draws from a row is what Sample would have: it continues either way.
TEST_F(SamplerTest, LeavesPlainDrawsToWhoeverHasTheLogits) {
  const std::vector<float> logits = RandomLogits(300, 5);
  SamplerScratch scratch(logits.size());
  for (const SamplingParams& params :
       {SamplingParams{}, {.temperature = 1.2, .top_k = 40, .top_p = 0.9, .min_p = 0.01}}) {
    Sampler here(params, 4, 1, {}, 16);
    Sampler there(params, 4, 1, {}, 16);
    for (int i = 0; i < 16; ++i) {
      const std::optional<RowSampling> draw = there.PlainDraw();
      ASSERT_TRUE(draw.has_value());
      const int32_t token = SampleRow(logits.data(), static_cast<int64_t>(logits.size()), *draw);
      there.Accept(token);
      EXPECT_EQ(here.Sample(logits, {}, &scratch), token);
    }
  }
  EXPECT_FALSE(Sampler({.frequency_penalty = 0.1}, 0, 0, {}, 1).PlainDraw().has_value());
  EXPECT_FALSE(Sampler({.repetition_penalty = 1.1}, 0, 0, {}, 1).PlainDraw().has_value());
  EXPECT_FALSE(Sampler({.logit_bias = {{3, 1.0f}}}, 0, 0, {}, 1).PlainDraw().has_value());
}

TEST_F(SamplerTest, ChoosesNothingFromWhatIsNoNumber) {
  SamplerScratch scratch(4);
  const std::vector<int32_t> prompt = {0, 1, 2, 3};
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      for (const double penalty : {1.0, 1.5}) {
        Sampler sampler({.temperature = temperature, .repetition_penalty = penalty}, 0, 0, prompt, 8);
        EXPECT_EQ(sampler.Sample({0.5f, bad, 1.0f, 2.0f}, {}, &scratch), kNoToken);
        EXPECT_EQ(sampler.Sample({0.5f, bad, 1.0f, 2.0f}, std::vector<uint64_t>{0b1101}, &scratch), kNoToken);
        EXPECT_EQ(sampler.Sample({0.0f, 9.0f, 0.0f, 0.0f}, std::vector<uint64_t>{0b1000}, &scratch), 3);
      }
    }
  }
}

TEST_F(SamplerTest, RepeatsItselfForASeedAndAChoice) {
  const std::vector<float> flat(1000, 0.0f);
  SamplerScratch scratch(flat.size());
  const auto draw = [&](uint64_t seed, uint32_t choice) {
    Sampler sampler({.temperature = 1.0, .seed = seed}, /*seed=*/99, choice, {}, 20);
    std::vector<int32_t> tokens;
    for (int i = 0; i < 20; ++i) tokens.push_back(sampler.Sample(flat, {}, &scratch));
    return tokens;
  };
  EXPECT_EQ(draw(7, 0), draw(7, 0));
  EXPECT_NE(draw(7, 0), draw(8, 0));
  EXPECT_NE(draw(7, 0), draw(7, 1));
}

TEST(Logprobs, AreThoseOfTheModelInFallingOrder) {
  const std::vector<float> logits = {1.0f, 3.0f, -2.0f, 3.0f, 0.0f};
  double total = 0;
  for (const float logit : logits) total += std::exp(logit);
  const auto expect = [&](const std::vector<TokenLogprob>& found, const std::vector<int32_t>& ids) {
    ASSERT_EQ(found.size(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(found[i].id, ids[i]);
      EXPECT_NEAR(found[i].logprob, logits[ids[i]] - std::log(total), 1e-5);
    }
  };
  expect(Logprobs(logits, 2, 0), {2});
  expect(Logprobs(logits, 2, 3), {2, 1, 3, 0});
  expect(Logprobs(logits, 1, 9), {1, 1, 3, 0, 4, 2});
}

}  // namespace
}  // namespace aludel
