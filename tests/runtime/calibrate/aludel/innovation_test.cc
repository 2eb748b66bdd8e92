#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/calibrate/aludel/metric.h"
#include "runtime/calibrate/fit/linear_fit.h"

namespace aludel {
namespace {

// Samples of (x, f) and y with moments in double.
struct World {
  static constexpr int64_t kMain = 6, kSide = 3, kOutputs = 5, kRows = 4000;
  std::vector<double> features, targets;
  Moments xx = Moments::Zeros(kMain + kSide, kMain + kSide);
  Moments xy = Moments::Zeros(kMain + kSide, kOutputs);

  World() {
    std::mt19937_64 random(11);
    std::normal_distribution<double> normal;
    std::vector<double> mix((kMain + kSide) * (kMain + kSide)), map((kMain + kSide) * kOutputs);
    for (double& value : mix) value = normal(random);
    for (double& value : map) value = normal(random);
    const int64_t n = kMain + kSide;
    for (int64_t t = 0; t < kRows; ++t) {
      std::vector<double> source(n), row(n);
      for (double& value : source) value = normal(random);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) row[i] += mix[i * n + j] * source[j];
      }
      std::vector<double> y(kOutputs);
      for (int64_t k = 0; k < kOutputs; ++k) {
        for (int64_t i = 0; i < n; ++i) y[k] += map[i * kOutputs + k] * row[i];
        y[k] += 0.3 * normal(random);
      }
      features.insert(features.end(), row.begin(), row.end());
      targets.insert(targets.end(), y.begin(), y.end());
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) xx.at(i, j) += row[i] * row[j] / kRows;
        for (int64_t k = 0; k < kOutputs; ++k) xy.at(i, k) += row[i] * y[k] / kRows;
      }
    }
  }

  // z = E x + F f of every sample. [rows, rank]
  std::vector<double> Latents(const InnovationBasis& basis) const {
    std::vector<double> z;
    for (int64_t t = 0; t < kRows; ++t) {
      const double* row = features.data() + t * (kMain + kSide);
      for (int64_t r = 0; r < basis.main.rows; ++r) {
        double value = 0;
        for (int64_t i = 0; i < kMain; ++i) value += basis.main.row(r)[i] * row[i];
        for (int64_t i = 0; i < kSide; ++i) value += basis.side.row(r)[i] * row[kMain + i];
        z.push_back(value);
      }
    }
    return z;
  }

  // Squared error per row of the best linear map of y from (z, f).
  double ErrorFrom(const std::vector<double>& z, int64_t rank) const {
    const int64_t n = rank + kSide;
    Moments uu = Moments::Zeros(n, n), uy = Moments::Zeros(n, kOutputs);
    double energy = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      std::vector<double> u(z.begin() + t * rank, z.begin() + (t + 1) * rank);
      u.insert(u.end(), features.begin() + t * (kMain + kSide) + kMain,
               features.begin() + (t + 1) * (kMain + kSide));
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) uu.at(i, j) += u[i] * u[j] / kRows;
        for (int64_t k = 0; k < kOutputs; ++k) uy.at(i, k) += u[i] * targets[t * kOutputs + k] / kRows;
      }
      for (int64_t k = 0; k < kOutputs; ++k) energy += std::pow(targets[t * kOutputs + k], 2) / kRows;
    }
    const HostMatrix w = FitRidge(uu, uy, 1e-10).value();
    for (int64_t k = 0; k < kOutputs; ++k) {
      for (int64_t i = 0; i < n; ++i) energy -= w.row(k)[i] * uy.at(i, k);
    }
    return energy;
  }
};

TEST(FitInnovation, LatentsAreUncorrelatedWithTheSideAndEachOther) {
  const World world;
  const auto basis = FitInnovation(world.xx, World::kMain, world.xy, 4, 1e-9);
  ASSERT_TRUE(basis.ok()) << basis.status();
  const std::vector<double> z = world.Latents(*basis);
  for (int r = 0; r < 4; ++r) {
    for (int s = 0; s <= r; ++s) {
      double product = 0;
      for (int64_t t = 0; t < World::kRows; ++t) product += z[t * 4 + r] * z[t * 4 + s] / World::kRows;
      EXPECT_NEAR(product, r == s ? basis->energy[r] : 0.0, 1e-3 * basis->energy[0]);
    }
    for (int i = 0; i < World::kSide; ++i) {
      double product = 0;
      for (int64_t t = 0; t < World::kRows; ++t) {
        product += z[t * 4 + r] * world.features[t * 9 + World::kMain + i] / World::kRows;
      }
      EXPECT_NEAR(product, 0.0, 1e-3 * basis->energy[0]);
    }
  }
}

TEST(FitInnovation, EachLatentLowersTheErrorByItsEnergyAndNoOtherLatentsDoBetter) {
  const World world;
  double before = world.ErrorFrom({}, 0);
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (int64_t rank = 1; rank <= 4; ++rank) {
    const auto basis = FitInnovation(world.xx, World::kMain, world.xy, rank, 1e-9);
    ASSERT_TRUE(basis.ok());
    const double error = world.ErrorFrom(world.Latents(*basis), rank);
    EXPECT_NEAR(before - error, basis->energy[rank - 1], 0.02 * basis->energy[0]);
    before = error;
    for (int trial = 0; trial < 20; ++trial) {
      InnovationBasis other = *basis;
      for (float& value : other.main.values) value += 0.3f * normal(random);
      EXPECT_GE(world.ErrorFrom(world.Latents(other), rank), error - 1e-6);
    }
  }
}

// Squared error per row of the best linear map of the world's targets from `rank` rows of directions of all its features.
double ErrorFromDirections(const World& world, const HostMatrix& directions) {
  const Moments uu = ProjectBoth(directions, world.xx), uy = ProjectLeft(directions, world.xy);
  double error = 0;
  for (const double y : world.targets) error += y * y / World::kRows;
  const HostMatrix w = FitRidge(uu, uy, 1e-10).value();
  for (int64_t k = 0; k < World::kOutputs; ++k) {
    for (int64_t i = 0; i < directions.rows; ++i) error -= w.row(k)[i] * uy.at(i, k);
  }
  return error;
}

TEST(PredictiveDirections, NoOthersSayMore) {
  const World world;
  constexpr int64_t kAll = World::kMain + World::kSide;
  Moments told = Moments::Zeros(kAll, kAll);
  // Targets in two parts, as groups of layers are.
  AddOuterGram(Block(world.xy, 0, kAll, 0, 2), &told);
  AddOuterGram(Block(world.xy, 0, kAll, 2, World::kOutputs - 2), &told);
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  HostMatrix all = HostMatrix::Zeros(kAll, kAll);
  for (int64_t i = 0; i < kAll; ++i) all.row(i)[i] = 1;
  const double least = ErrorFromDirections(world, all);
  double before = 1e30;
  for (int64_t rank = 1; rank <= World::kOutputs; ++rank) {
    const auto found = PredictiveDirections(world.xx, told, rank, 1e-9);
    ASSERT_TRUE(found.ok()) << found.status();
    const Moments gram = ProjectBoth(*found, world.xx);
    for (int64_t i = 0; i < rank; ++i) {
      for (int64_t j = 0; j < rank; ++j)
        EXPECT_NEAR(gram.at(i, j), i == j ? 1.0 : 0.0, 1e-4) << i << " " << j;
    }
    const double error = ErrorFromDirections(world, *found);
    EXPECT_LT(error, before);
    before = error;
    for (int trial = 0; trial < 200; ++trial) {
      HostMatrix other = *found;
      const float size = trial % 2 == 0 ? 0.05f : 1.0f;
      for (float& value : other.values) value += size * normal(random);
      EXPECT_GE(ErrorFromDirections(world, other), error * (1 - 1e-6)) << rank;
    }
  }
  // As many as there are targets say all that can be said.
  EXPECT_NEAR(before, least, 1e-4 * least);
}

TEST(PredictiveDirections, SaysWhichMomentsAreSingular) {
  EXPECT_EQ(PredictiveDirections(Moments::Zeros(4, 4), Moments::Zeros(4, 4), 2, 1e-5).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(FitInnovation, SaysWhichMomentsAreSingular) {
  const Moments xx = Moments::Zeros(4, 4);
  EXPECT_EQ(FitInnovation(xx, 2, Moments::Zeros(4, 1), 1, 1e-6).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(TargetMetric, TurnAndUnscaleAreTheInverseOfApply) {
  const int64_t n = 6;
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  TargetMetric metric;
  for (int64_t i = 0; i < n; ++i) {
    metric.mean.push_back(normal(random));
    metric.scale.push_back(0.5f + std::abs(normal(random)));
  }
  Moments sensitivity = Moments::Zeros(n, n);
  for (int s = 0; s < 4; ++s) {
    std::vector<double> g(n);
    for (double& value : g) value = normal(random);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) sensitivity.at(i, j) += g[i] * g[j];
    }
  }
  ASSERT_TRUE(AddSensitivity(sensitivity, 0.2, &metric).ok());
  std::vector<float> y(n);
  for (float& value : y) value = normal(random);
  std::vector<float> turned = y;
  metric.Apply(turned.data(), 1);
  HostMatrix back{n, 1, turned};
  metric.Turn(&back);
  metric.Unscale(&back);
  for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(back.values[i] + metric.mean[i], y[i], 1e-4);
  // Squared length in the metric is (1 - blend) d^T W d + blend |d|^2 of scaled differences.
  double trace = 0, quadratic = 0, plain = 0, length = 0;
  for (int64_t i = 0; i < n; ++i) trace += sensitivity.at(i, i) * metric.scale[i] * metric.scale[i];
  for (int64_t i = 0; i < n; ++i) {
    const double d = (y[i] - metric.mean[i]) / metric.scale[i];
    plain += d * d;
    length += static_cast<double>(turned[i]) * turned[i];
    for (int64_t j = 0; j < n; ++j) {
      const double e = (y[j] - metric.mean[j]) / metric.scale[j];
      quadratic += d * sensitivity.at(i, j) * metric.scale[i] * metric.scale[j] * e;
    }
  }
  EXPECT_NEAR(length, 0.8 * quadratic * n / trace + 0.2 * plain, 1e-3 * length);
}

}  // namespace
}  // namespace aludel
