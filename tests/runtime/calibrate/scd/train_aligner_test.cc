#include "runtime/calibrate/scd/train_aligner.h"

#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr int kRank = 3;
constexpr int kHidden = 4;
constexpr int kWidth = 5;

std::vector<float> Noise(std::mt19937_64& random, size_t count, double scale) {
  std::normal_distribution<double> normal;
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(scale * normal(random));
  return values;
}

AlignerWeights RandomWeights(uint64_t seed) {
  std::mt19937_64 random(seed);
  return {{kHidden, kRank, Noise(random, kHidden * kRank, 0.5)},
          Noise(random, kHidden, 0.5),
          {2 * kWidth, kRank, Noise(random, 2 * kWidth * kRank, 0.7)},
          Noise(random, 2 * kWidth, 0.5),
          {kHidden, kWidth, Noise(random, kHidden * kWidth, 0.5)}};
}

AlignerData RandomData(int64_t tokens, uint64_t seed) {
  std::mt19937_64 random(seed);
  return {tokens, Noise(random, tokens * kRank, 1.0), Noise(random, tokens * kHidden, 1.0)};
}

// The same weights in double, and the loss written from the equation.
struct Reference {
  std::vector<std::vector<double>> parameters;  // skip, bias, gate_up, gate_up_bias, down

  explicit Reference(const AlignerWeights& w) {
    for (const std::vector<float>* p :
         {&w.skip.values, &w.bias, &w.gate_up.values, &w.gate_up_bias, &w.down.values}) {
      parameters.emplace_back(p->begin(), p->end());
    }
  }

  double Loss(const AlignerData& data) const {
    const auto& [skip, bias, gate_up, gate_up_bias, down] =
        std::tie(parameters[0], parameters[1], parameters[2], parameters[3], parameters[4]);
    double loss = 0;
    for (int64_t t = 0; t < data.tokens; ++t) {
      const float* z = data.z.data() + t * kRank;
      double act[kWidth];
      for (int j = 0; j < kWidth; ++j) {
        double gate = gate_up_bias[j];
        double up = gate_up_bias[kWidth + j];
        for (int i = 0; i < kRank; ++i) {
          gate += gate_up[j * kRank + i] * z[i];
          up += gate_up[(kWidth + j) * kRank + i] * z[i];
        }
        act[j] = gate / (1 + std::exp(-gate)) * up;
      }
      for (int o = 0; o < kHidden; ++o) {
        double g = bias[o];
        for (int i = 0; i < kRank; ++i) g += skip[o * kRank + i] * z[i];
        for (int j = 0; j < kWidth; ++j) g += down[o * kWidth + j] * act[j];
        loss += std::pow(g - data.h[t * kHidden + o], 2);
      }
    }
    return loss / static_cast<double>(data.tokens * kHidden);
  }
};

TEST(AlignerLoss, AgreesWithTheEquationInDouble) {
  const AlignerWeights weights = RandomWeights(1);
  const AlignerData data = RandomData(37, 2);
  AlignerWeights gradient;
  const double loss = AlignerLoss(weights, data, nullptr, 0, data.tokens, &gradient);
  EXPECT_NEAR(loss, Reference(weights).Loss(data), 1e-6 * loss);
}

TEST(AlignerLoss, GradientAgreesWithCentralDifferencesInDouble) {
  const AlignerWeights weights = RandomWeights(3);
  const AlignerData data = RandomData(29, 4);
  AlignerWeights gradient;
  AlignerLoss(weights, data, nullptr, 0, data.tokens, &gradient);
  const Reference found(gradient);
  Reference moved(weights);
  for (size_t p = 0; p < moved.parameters.size(); ++p) {
    for (size_t i = 0; i < moved.parameters[p].size(); ++i) {
      constexpr double kStep = 1e-5;
      const double at = moved.parameters[p][i];
      moved.parameters[p][i] = at + kStep;
      const double above = moved.Loss(data);
      moved.parameters[p][i] = at - kStep;
      const double below = moved.Loss(data);
      moved.parameters[p][i] = at;
      const double want = (above - below) / (2 * kStep);
      EXPECT_NEAR(found.parameters[p][i], want, 1e-5 + 1e-4 * std::abs(want)) << "group " << p << ", " << i;
    }
  }
}

TEST(AlignerLoss, OrderChoosesTheRows) {
  const AlignerWeights weights = RandomWeights(5);
  const AlignerData data = RandomData(6, 6);
  const int64_t order[] = {4, 1, 5};
  AlignerWeights gradient;
  const double both = AlignerLoss(weights, data, order, 1, 2, &gradient);
  const double first = AlignerLoss(weights, data, nullptr, 1, 1, &gradient);
  const double second = AlignerLoss(weights, data, nullptr, 5, 1, &gradient);
  EXPECT_NEAR(both, (first + second) / 2, 1e-6);
}

// h bends with z, so that no linear map can follow it. One latent is a thousand times larger than another, as
// eigen-coordinates are.
AlignerData BentData(int64_t tokens, uint64_t seed) {
  AlignerData data = RandomData(tokens, seed);
  for (int64_t t = 0; t < tokens; ++t) {
    float* z = data.z.data() + t * kRank;
    float* h = data.h.data() + t * kHidden;
    h[0] = std::max(0.0f, z[0]);
    h[1] = z[0] * z[1];
    h[2] = z[2];
    h[3] = std::abs(z[1]);
    z[0] *= 100.0f;
    z[2] *= 0.1f;
  }
  return data;
}

HostMatrix NoMap() { return HostMatrix::Zeros(kHidden, kRank); }

TEST(TrainAligner, LearnsWhatALinearMapCannot) {
  AlignerTraining options;
  options.width = 32;
  options.epochs = 60;
  options.learning_rate = 1e-2;
  const auto result =
      TrainAligner(BentData(2000, 7), BentData(500, 8), NoMap(), options, [] { return true; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->linear_error, 1.0, 0.05);
  EXPECT_LT(result->trained_error, 0.02);
}

TEST(TrainAligner, ReturnedWeightsReachTheReportedErrorOnPlainCodes) {
  AlignerTraining options;
  options.width = kWidth;
  options.epochs = 20;
  const AlignerData held_out = BentData(500, 10);
  const auto result = TrainAligner(BentData(2000, 9), held_out, NoMap(), options, [] { return true; });
  ASSERT_TRUE(result.ok());
  double energy = 0;
  for (const float value : held_out.h) energy += static_cast<double>(value) * value;
  const double mean_square = energy / static_cast<double>(held_out.h.size());
  EXPECT_NEAR(Reference(result->weights).Loss(held_out) / mean_square, result->trained_error, 1e-3);
}

TEST(TrainAligner, SameSeedGivesTheSameBytes) {
  AlignerTraining options;
  options.width = 8;
  options.epochs = 2;
  const auto train = [&options] {
    return TrainAligner(BentData(600, 11), BentData(100, 12), NoMap(), options, [] { return true; }).value();
  };
  const AlignerWeights first = train().weights;
  const AlignerWeights second = train().weights;
  EXPECT_EQ(first.down.values, second.down.values);
  EXPECT_EQ(first.gate_up.values, second.gate_up.values);
  EXPECT_EQ(first.skip.values, second.skip.values);
}

TEST(TrainAligner, StopsWhenAsked) {
  const auto result =
      TrainAligner(BentData(100, 13), BentData(100, 14), NoMap(), AlignerTraining(), [] { return false; });
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace aludel
