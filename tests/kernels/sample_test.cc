#include "kernels/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sample_terms.h"
#include "tests/kernels/sample_problem.h"

namespace aludel {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// How far a sum of probabilities may be from the exact one.
constexpr double kClose = 4e-6;

// The definition in double, over all tokens, sorted.
int32_t Reference(const std::vector<float>& logits, const RowSampling& sampling) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (sampling.temperature < kGreedyBelow) return order[0];
  const double largest = logits[order[0]];
  const auto weight = [&](int32_t id) { return std::exp((logits[id] - largest) / sampling.temperature); };
  const auto sum = [&] {
    double total = 0;
    for (const int32_t id : order) total += weight(id);
    return total;
  };
  if (sampling.top_k > 0) order.resize(std::min<size_t>(order.size(), sampling.top_k));
  if (sampling.top_p > 0 && sampling.top_p < 1) {
    const double wanted = sampling.top_p * sum();
    size_t count = 0;
    for (double mass = 0; count < order.size() && mass < wanted;) mass += weight(order[count++]);
    order.resize(std::max<size_t>(count, 1));
  }
  while (weight(order.back()) < sampling.min_p) order.pop_back();
  std::sort(order.begin(), order.end());
  double left = sampling.uniform * sum();
  int32_t token = -1;
  for (const int32_t id : order) {
    if (weight(id) < 0x1p-44) continue;  // out of reach
    token = id;
    left -= weight(id);
    if (left < 0) break;
  }
  return token;
}

int32_t Sample(const std::vector<float>& logits, const RowSampling& sampling) {
  return SampleRow(logits.data(), static_cast<int64_t>(logits.size()), sampling);
}

class SampleTest : public ::testing::Test {
 protected:
  SampleTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  // Whether the token is the definition's, or that of numbers kClose to the given ones. Counts the latter.
  void Check(const std::vector<float>& logits, const RowSampling& sampling) {
    const int32_t token = Sample(logits, sampling);
    if (token == Reference(logits, sampling)) return;
    ++beside_;
    for (const double u : {-kClose, 0.0, kClose}) {
      for (const double p : {-kClose, 0.0, kClose}) {
        for (const double m : {-kClose, 0.0, kClose}) {
          RowSampling near = sampling;
          near.uniform += u;
          if (near.top_p > 0 && near.top_p < 1) near.top_p = std::clamp(near.top_p + p, 1e-300, 1 - 1e-16);
          near.min_p = std::min(1.0, near.min_p * (1 + m));
          if (token == Reference(logits, near)) return;
        }
      }
    }
    FAIL() << "token " << token << " of " << logits.size() << ", want " << Reference(logits, sampling) << ": "
           << sampling;
  }

  std::mt19937_64 random_;
  int beside_ = 0;
};

TEST_F(SampleTest, IsTheDefinitionWhateverIsAskedFor) {
  constexpr int kDraws = 4000;
  for (int i = 0; i < kDraws; ++i) {
    const auto vocab = static_cast<int64_t>(1 + random_() % (i % 10 == 0 ? 3000 : 40));
    ASSERT_NO_FATAL_FAILURE(Check(RandomLogits(vocab, random_), RandomSampling(vocab, random_)));
  }
  EXPECT_LE(beside_, kDraws / 50);
}

TEST_F(SampleTest, IsTheDefinitionForALargeVocabulary) {
  for (const int64_t vocab : {32000, 128257}) {
    for (int i = 0; i < 12; ++i) {
      ASSERT_NO_FATAL_FAILURE(Check(RandomLogits(vocab, random_), RandomSampling(vocab, random_)));
    }
  }
}

TEST_F(SampleTest, WeighsAsTheExponentialDoes) {
  for (int i = 0; i < 100000; ++i) {
    const auto distance = static_cast<int32_t>(random_() % (int64_t{30} << kOctaveBits));
    const double exact = std::exp2(kWeightBits - distance * std::exp2(-kOctaveBits));
    ASSERT_NEAR(static_cast<double>(WeightOf(distance)), exact, 3e-7 * exact + 1) << distance;
  }
  EXPECT_EQ(WeightOf(0), uint64_t{1} << kWeightBits);
  EXPECT_GE(WeightOf((kWeightBits << kOctaveBits) - 1), 1u);
  EXPECT_EQ(WeightOf(kFar), 0u);
}

TEST_F(SampleTest, KnowsLogitsByTheirOrder) {
  const std::vector<float> rising = {-kInfinity, -3e38f, -1.0f, -1e-40f,  0.0f,
                                     1e-40f,     2.0f,   3e38f, kInfinity};
  for (size_t i = 0; i < rising.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(KeyOf(rising[i - 1]), KeyOf(rising[i]));
    }
    EXPECT_EQ(LogitOf(KeyOf(rising[i])), rising[i]);
    EXPECT_EQ(IsNumber(KeyOf(rising[i])), std::isfinite(rising[i]));
    EXPECT_LT(KeyOf(rising[i]), KeyOf(kNan));
    EXPECT_LT(KeyOf(rising[i]), KeyOf(-kNan));
  }
  EXPECT_EQ(KeyOf(-0.0f), KeyOf(0.0f));
  EXPECT_FALSE(IsNumber(KeyOf(kNan)));
}

TEST_F(SampleTest, GivesTiesToTheLowestId) {
  const std::vector<float> logits = {1.0f, -0.0f, 5.0f, 2.0f, 5.0f, 5.0f};
  EXPECT_EQ(Sample(logits, {}), 2);
  EXPECT_EQ(Sample(logits, {.temperature = 1e-40}), 2);
  EXPECT_EQ(Sample(logits, {.temperature = 1e30, .top_k = 1, .uniform = 0.99}), 2);
  EXPECT_EQ(Sample(logits, {.temperature = 1, .top_k = 2, .uniform = 0.99}), 4);
  EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = 0.4, .uniform = 0.99}), 4);
  EXPECT_EQ(Sample({-0.0f, 0.0f}, {}), 0);
}

// Of four tokens alike, half the mass is two: not one, nor three.
TEST_F(SampleTest, KeepsAsManyAsReachTopPExactly) {
  const std::vector<float> logits(4, 1.0f);
  EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = 0.5, .uniform = 0.999}), 1);
  EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = std::nextafter(0.5, 1.0), .uniform = 0.999}), 2);
  EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = 1e-300, .uniform = 0.999}), 0);
  EXPECT_EQ(Sample(logits, {.temperature = 1, .top_p = 0.0, .uniform = 0.999}), 3);
}

TEST_F(SampleTest, DrawsByAscendingId) {
  const std::vector<float> logits = {0.0f, 3.0f, 0.0f, 0.0f};
  EXPECT_EQ(Sample(logits, {.temperature = 1, .uniform = 0.0}), 0);
  EXPECT_EQ(Sample(logits, {.temperature = 1, .uniform = 0.5}), 1);
  EXPECT_EQ(Sample(logits, {.temperature = 1, .uniform = 1 - 0x1p-53}), 3);
}

TEST_F(SampleTest, ChoosesNothingWhereLogitsAreNoNumbers) {
  for (const double temperature : {0.0, 1.0}) {
    const RowSampling sampling = {.temperature = temperature, .top_k = 3, .top_p = 0.9, .uniform = 0.3};
    for (const float bad : {kNan, -kNan, kInfinity}) {
      for (const size_t at : {0, 7, 99}) {
        std::vector<float> logits(100, 0.25f);
        logits[at] = bad;
        EXPECT_EQ(Sample(logits, sampling), kNoToken) << bad << " at " << at;
      }
    }
    EXPECT_EQ(Sample(std::vector<float>(33, -kInfinity), sampling), kNoToken);
    EXPECT_EQ(Sample({-kInfinity, -3e38f, -kInfinity}, sampling), 1);
  }
}

TEST_F(SampleTest, AnyTemperatureHasItsLimit) {
  const std::vector<float> logits = {0.0f, 1e38f, -1e38f, 1e38f, -kInfinity};
  EXPECT_EQ(Sample(logits, {.temperature = 1e60, .uniform = 0.3}), 1);
  EXPECT_EQ(Sample(logits, {.temperature = 1e60, .uniform = 0.99}), 3);
  EXPECT_EQ(Sample(logits, {.temperature = kGreedyBelow, .uniform = 0.0}), 1);
  EXPECT_EQ(Sample(logits, {.temperature = kGreedyBelow, .uniform = 0.99}), 3);
}

// Counts of draws at evenly spread random numbers are the probabilities.
TEST_F(SampleTest, DrawsEveryTokenAsOftenAsItIsProbable) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(1500);
  for (float& logit : logits) logit = normal(random);
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / 1.3);
  constexpr int kDraws = 20000;
  std::map<int32_t, int> seen;
  for (int i = 0; i < kDraws; ++i) {
    ++seen[Sample(logits, {.temperature = 1.3, .uniform = (i + 0.5) / kDraws})];
  }
  for (size_t id = 0; id < logits.size(); ++id) {
    EXPECT_NEAR(seen[static_cast<int32_t>(id)], std::exp(logits[id] / 1.3) / total * kDraws, 1.2) << id;
  }
}

}  // namespace
}  // namespace aludel
