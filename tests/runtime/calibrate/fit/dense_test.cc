#include "runtime/calibrate/fit/dense.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/onednn_loader.h"
#include "runtime/calibrate/fit/device_products.h"
#include "tests/testing/test_device.h"

namespace aludel {
namespace {

// On the host, and on the device of tests where that makes products.
class DenseTest : public ::testing::Test {
 protected:
  // Large enough for a device, and of no round size.
  static constexpr int64_t kM = 419, kN = 401, kK = 403;
  static constexpr int64_t kGap = 5;

  void SetUp() override {
    ASSERT_TRUE(cpu::LoadOneDnn().ok());
    ASSERT_TRUE(DeviceProducts::IsWorthIt(kM, kN, kK));
    const auto seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  std::vector<float> Random(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  // op(a) [m, k] times op(b) [k, n], and the sum of the terms' sizes, which errors go with.
  struct Expected {
    double sum, terms;
  };
  template <typename A, typename B>
  static Expected Product(int64_t k, const A& a, const B& b, double before) {
    Expected expected{before, std::fabs(before)};
    for (int64_t l = 0; l < k; ++l) {
      const double term = double{a(l)} * double{b(l)};
      expected.sum += term;
      expected.terms += std::fabs(term);
    }
    return expected;
  }
  static void ExpectNear(float found, const Expected& want, double tolerance, const std::string& where) {
    ASSERT_LE(std::fabs(found - want.sum), tolerance * want.terms)
        << where << ": " << found << ", want " << want.sum;
  }

  std::unique_ptr<Device> device_ = OpenTestDevice().value();
  const ProductDevice products_{device_.get()};
  std::mt19937_64 random_;
};

TEST_F(DenseTest, MultipliesEitherWayRound) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      for (const float beta : {0.0f, 1.0f}) {
        SCOPED_TRACE(absl::StrCat(transpose_a, transpose_b, beta));
        const int64_t lda = (transpose_a ? kM : kK) + kGap, ldb = transpose_b ? kK : kN, ldc = kN + kGap;
        const std::vector<float> a = Random(lda * (transpose_a ? kK : kM)), b = Random(kN * kK);
        const std::vector<float> before = Random(ldc * kM);
        std::vector<float> c = before;
        if (beta == 0) c[0] = std::numeric_limits<float>::quiet_NaN();  // is not read
        const auto kept = KeepForProducts(b.data(), b.size() * sizeof(float));
        for (const Buffer* const copy : {static_cast<const Buffer*>(nullptr), kept.get()}) {
          std::vector<float> found = c;
          Sgemm(transpose_a, transpose_b, kM, kN, kK, a.data(), lda, b.data(), ldb, beta, found.data(), ldc,
                copy);
          for (int64_t i = 0; i < kM; i += 7) {
            for (int64_t j = 0; j < kN; ++j) {
              const Expected want = Product(
                  kK, [&](int64_t l) { return transpose_a ? a[l * lda + i] : a[i * lda + l]; },
                  [&](int64_t l) { return transpose_b ? b[j * ldb + l] : b[l * ldb + j]; },
                  beta == 0 ? 0.0 : double{before[i * ldc + j]});
              ExpectNear(found[i * ldc + j], want, 1e-6, absl::StrCat(i, ", ", j));
            }
            for (int64_t j = kN; j < ldc; ++j) ASSERT_EQ(found[i * ldc + j], before[i * ldc + j]);
          }
        }
      }
    }
  }
}

TEST_F(DenseTest, MultipliesByNarrowWeights) {
  for (const bool transpose_b : {false, true}) {
    for (const float beta : {0.0f, 1.0f}) {
      SCOPED_TRACE(absl::StrCat(transpose_b, beta));
      std::vector<Bf16> b;
      for (const float value : Random(kN * kK)) b.push_back(ToBf16(value));
      const std::vector<float> a = Random(kM * kK), before = Random(kM * kN);
      const auto kept = KeepForProducts(b.data(), b.size() * sizeof(Bf16));
      std::vector<float> found = before;
      Bgemm(transpose_b, kM, kN, kK, a.data(), b.data(), beta, found.data(), kept.get());
      for (int64_t i = 0; i < kM; i += 7) {
        for (int64_t j = 0; j < kN; ++j) {
          const Expected want = Product(
              kK, [&](int64_t l) { return a[i * kK + l]; },
              [&](int64_t l) { return ToFloat(transpose_b ? b[j * kK + l] : b[l * kN + j]); },
              beta == 0 ? 0.0 : double{before[i * kN + j]});
          ExpectNear(found[i * kN + j], want, 1.0 / 256, absl::StrCat(i, ", ", j));  // `a` may be rounded
        }
      }
    }
  }
}

TEST_F(DenseTest, AddsMomentsOfManyRows) {
  constexpr int64_t kRows = 1300, kX = 260, kY = 230;  // three chunks
  ASSERT_TRUE(DeviceProducts::IsWorthIt(kX, kY, kRows));
  const std::vector<float> x = Random(kRows * kX), y = Random(kRows * kY);
  Moments gram = Moments::Zeros(kX, kX), both = Moments::Zeros(kX, kY);
  for (double& value : both.values) value = 1e6;
  AddGram(x.data(), kRows, &gram);
  AddProduct(x.data(), y.data(), kRows, &both);
  for (int64_t i = 0; i < kX; i += 3) {
    const auto column = [&](int64_t t) { return x[t * kX + i]; };
    for (int64_t j = 0; j < kX; ++j) {
      const Expected want = Product(
          kRows, column, [&](int64_t t) { return x[t * kX + j]; }, 0.0);
      ASSERT_LE(std::fabs(gram.at(i, j) - want.sum), 1e-6 * want.terms) << i << ", " << j;
    }
    for (int64_t j = 0; j < kY; ++j) {
      const Expected want = Product(
          kRows, column, [&](int64_t t) { return y[t * kY + j]; }, 0.0);
      // What was there keeps its digits.
      ASSERT_LE(std::fabs(both.at(i, j) - 1e6 - want.sum), 1e-6 * want.terms) << i << ", " << j;
    }
  }
}

}  // namespace
}  // namespace aludel
