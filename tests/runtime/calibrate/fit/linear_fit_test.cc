#include "runtime/calibrate/fit/linear_fit.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/calibrate/fit/dense.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// Everything is compared with plain double loops written from the equations, over the token matrix itself.
using Rows = std::vector<std::vector<double>>;

// Tokens of a strongly correlated source: `rank` shared directions and a little noise.
Rows Tokens(int count, int dims, int rank, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Rows directions(rank, std::vector<double>(dims));
  for (auto& row : directions) {
    for (double& value : row) value = normal(random);
  }
  Rows tokens(count, std::vector<double>(dims));
  for (auto& row : tokens) {
    for (int r = 0; r < rank; ++r) {
      const double weight = normal(random) * (rank - r);
      for (int j = 0; j < dims; ++j) row[j] += weight * directions[r][j];
    }
    for (double& value : row) value += 0.1 * normal(random);
  }
  return tokens;
}

Moments Product(const Rows& x, const Rows& y) {
  Moments m = Moments::Zeros(static_cast<int64_t>(x[0].size()), static_cast<int64_t>(y[0].size()));
  for (size_t t = 0; t < x.size(); ++t) {
    for (int64_t i = 0; i < m.rows; ++i) {
      for (int64_t j = 0; j < m.cols; ++j) m.at(i, j) += x[t][i] * y[t][j];
    }
  }
  return m;
}

Rows Columns(const Rows& x, int begin, int end) {
  Rows part;
  for (const auto& row : x) part.emplace_back(row.begin() + begin, row.begin() + end);
  return part;
}

std::vector<double> Apply(const HostMatrix& w, const std::vector<double>& x) {
  std::vector<double> y(w.rows);
  for (int64_t i = 0; i < w.rows; ++i) {
    for (int64_t j = 0; j < w.cols; ++j) y[i] += static_cast<double>(w.row(i)[j]) * x[j];
  }
  return y;
}

// Singular values squared of X by cyclic Jacobi rotations of X^T X: independent of the library under test.
std::vector<double> Spectrum(Moments a) {
  const int64_t n = a.rows;
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        if (std::abs(a.at(p, q)) < 1e-14 * std::sqrt(a.at(p, p) * a.at(q, q))) continue;
        const double angle = 0.5 * std::atan2(2 * a.at(p, q), a.at(q, q) - a.at(p, p));
        const double c = std::cos(angle);
        const double s = std::sin(angle);
        for (int64_t k = 0; k < n; ++k) {
          const double x = a.at(k, p);
          const double y = a.at(k, q);
          a.at(k, p) = c * x - s * y;
          a.at(k, q) = s * x + c * y;
        }
        for (int64_t k = 0; k < n; ++k) {
          const double x = a.at(p, k);
          const double y = a.at(q, k);
          a.at(p, k) = c * x - s * y;
          a.at(q, k) = s * x + c * y;
        }
      }
    }
  }
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(a.at(i, i));
  std::sort(values.rbegin(), values.rend());
  return values;
}

constexpr int kDim = 6;
constexpr int kTokens = 200;

TEST(FitJointSvd, CutOffEnergyIsTheEckartYoungTail) {
  const Rows x = Tokens(kTokens, 2 * kDim, 5, 1);
  const Moments gram = Product(x, x);
  const std::vector<double> spectrum = Spectrum(gram);
  for (int rank = 1; rank <= kDim; ++rank) {
    const auto fit = FitJointSvd(gram, kDim, rank, 1e-9);
    ASSERT_TRUE(fit.ok()) << fit.status();
    double tail = 0;
    for (size_t i = rank; i < spectrum.size(); ++i) tail += spectrum[i];
    EXPECT_NEAR(fit->tail_energy, tail, 1e-9 * gram.at(0, 0) * kDim) << "rank " << rank;
  }
}

TEST(FitJointSvd, DecoderOnTheOptimalLatentHasTheConsumersShareOfTheTail) {
  const Rows x = Tokens(kTokens, 2 * kDim, 5, 2);
  const Moments gram = Product(x, x);
  const int rank = 3;
  const auto fit = FitJointSvd(gram, kDim, rank, 1e-9);
  ASSERT_TRUE(fit.ok());
  const auto vectors = LeadingEigenvectors(gram, rank);
  ASSERT_TRUE(vectors.ok());
  // Z = X V_r for the joint rows; both halves decoded from it.
  double error = 0;
  for (const auto& row : x) {
    const std::vector<double> z = Apply(*vectors, row);
    const std::vector<double> b = Apply(fit->decoder, z);
    for (int j = 0; j < kDim; ++j) error += std::pow(row[kDim + j] - b[j], 2);
    for (int j = 0; j < kDim; ++j) {
      double a = 0;
      for (int r = 0; r < rank; ++r) a += static_cast<double>(vectors->row(r)[j]) * z[r];
      error += std::pow(row[j] - a, 2);
    }
  }
  EXPECT_NEAR(error / fit->tail_energy, 1.0, 1e-4);
}

TEST(FitJointSvd, EncoderSolvesTheRidgeNormalEquations) {
  const Rows x = Tokens(kTokens, 2 * kDim, 5, 3);
  const Rows a = Columns(x, 0, kDim);
  const int rank = 4;
  const double ridge = 1e-3;
  const auto fit = FitJointSvd(Product(x, x), kDim, rank, ridge);
  const auto vectors = LeadingEigenvectors(Product(x, x), rank);
  ASSERT_TRUE(fit.ok() && vectors.ok());
  Rows z;
  for (const auto& row : x) z.push_back(Apply(*vectors, row));
  const Moments aa = Product(a, a);
  const Moments az = Product(a, z);
  double trace = 0;
  for (int i = 0; i < kDim; ++i) trace += aa.at(i, i);
  for (int i = 0; i < kDim; ++i) {
    for (int r = 0; r < rank; ++r) {
      double left = ridge * trace / kDim * fit->encoder.row(r)[i];
      for (int j = 0; j < kDim; ++j) left += aa.at(i, j) * fit->encoder.row(r)[j];
      EXPECT_NEAR(left, az.at(i, r), 1e-5 * std::abs(trace));
    }
  }
}

TEST(FitRidge, ResidualOfTheNormalEquationsVanishes) {
  const Rows x = Tokens(kTokens, 5, 3, 4);
  const Rows y = Tokens(kTokens, 3, 2, 5);
  const Moments xx = Product(x, x);
  const Moments xy = Product(x, y);
  const double ridge = 1e-2;
  const auto w = FitRidge(xx, xy, ridge);
  ASSERT_TRUE(w.ok());
  double trace = 0;
  for (int i = 0; i < 5; ++i) trace += xx.at(i, i);
  for (int i = 0; i < 5; ++i) {
    for (int o = 0; o < 3; ++o) {
      double left = ridge * trace / 5 * w->row(o)[i];
      for (int j = 0; j < 5; ++j) left += xx.at(i, j) * w->row(o)[j];
      EXPECT_NEAR(left, xy.at(i, o), 1e-5 * trace);
    }
  }
}

TEST(FitRidge, SingularMomentsWithoutRidgeAreReported) {
  const Moments zeros = Moments::Zeros(3, 3);
  Moments target = Moments::Zeros(3, 1);
  target.at(0, 0) = 1;
  EXPECT_THAT(std::string(FitRidge(zeros, target, 0).status().message()), HasSubstr("singular"));
}

TEST(LeadingEigenvectors, AreOrthonormalAndOfFixedSign) {
  const Rows x = Tokens(kTokens, 7, 7, 6);
  const auto vectors = LeadingEigenvectors(Product(x, x), 7);
  ASSERT_TRUE(vectors.ok());
  for (int i = 0; i < 7; ++i) {
    for (int j = 0; j < 7; ++j) {
      double dot = 0;
      for (int k = 0; k < 7; ++k) dot += static_cast<double>(vectors->row(i)[k]) * vectors->row(j)[k];
      EXPECT_NEAR(dot, i == j ? 1.0 : 0.0, 1e-6);
    }
    const float* row = vectors->row(i);
    const float* largest =
        std::max_element(row, row + 7, [](float a, float b) { return std::abs(a) < std::abs(b); });
    EXPECT_GT(*largest, 0.0f);
  }
}

TEST(LeadingEigenvectors, RefusesARankBeyondTheDimension) {
  const Moments m = Moments::Zeros(3, 3);
  EXPECT_THAT(std::string(LeadingEigenvectors(m, 4).status().message()), HasSubstr("rank is 4, want 1 to 3"));
}

TEST(AddGram, AgreesWithDoubleSumsOverManyChunks) {
  const Rows x = Tokens(1300, 9, 4, 7);
  std::vector<float> flat;
  Rows rounded = x;
  for (auto& row : rounded) {
    for (double& value : row) {
      flat.push_back(static_cast<float>(value));
      value = flat.back();
    }
  }
  const Moments want = Product(rounded, rounded);
  Moments found = Moments::Zeros(9, 9);
  AddGram(flat.data(), 1300, &found);
  for (size_t i = 0; i < want.values.size(); ++i) {
    EXPECT_NEAR(found.values[i], want.values[i], 2e-6 * want.at(0, 0));
  }
}

TEST(Block, CopiesTheAskedPart) {
  Moments m = Moments::Zeros(3, 4);
  for (size_t i = 0; i < m.values.size(); ++i) m.values[i] = static_cast<double>(i);
  const Moments part = Block(m, 1, 2, 2, 2);
  EXPECT_THAT(part.values, ::testing::ElementsAre(6, 7, 10, 11));
}

TEST(CholeskyRoot, IsARootAndItsInverseUndoesIt) {
  const Rows x = Tokens(40, 7, 3, 5);
  const Moments metric = Product(x, x);
  const auto root = CholeskyRoot(metric);
  ASSERT_TRUE(root.ok()) << root.status();
  for (int64_t i = 0; i < 7; ++i) {
    for (int64_t j = 0; j < 7; ++j) {
      double square = 0, identity = 0;
      for (int64_t k = 0; k < 7; ++k) {
        square += static_cast<double>(root->root.row(i)[k]) * root->root.row(j)[k];
        identity += static_cast<double>(root->root.row(k)[i]) * root->inverse.row(k)[j];
      }
      EXPECT_NEAR(square, metric.at(i, j), 1e-4 * metric.at(i, i));
      EXPECT_NEAR(identity, i == j ? 1 : 0, 1e-3);
    }
  }
}

TEST(CholeskyRoot, RefusesWhatIsNoMetric) {
  Moments metric = Moments::Zeros(2, 2);
  metric.at(0, 0) = 1;
  metric.at(1, 1) = -1;
  EXPECT_EQ(CholeskyRoot(metric).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace aludel
