#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/e4m3_reference.h"
#include "tests/kernels/ops_fixture.h"

namespace aludel {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Products of E4M3 weights against the equations: scales times codes, rows rounded as ops.h says.
class Fp8OpsTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const absl::Status status = ops_->NewPacked(16, 16, WeightFormat::kFp8).status();
    if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
  }

  struct Weights {
    std::vector<uint8_t> codes;
    std::vector<float> scales;
  };
  Weights RandomWeights(int outs, int in) {
    Weights w{std::vector<uint8_t>(outs * in), Random(outs, 0.02f)};
    for (uint8_t& code : w.codes) {
      do {
        code = static_cast<uint8_t>(random_());
      } while (std::isnan(E4m3Value(code)));
    }
    for (float& scale : w.scales) scale = std::fabs(scale) + 1e-3f;
    return w;
  }
  std::unique_ptr<PackedMatrix> Pack(const Weights& w, int outs, int in) {
    auto packed = ops_->NewPacked(outs, in, WeightFormat::kFp8).value();
    EXPECT_TRUE(ops_->PackFp8Rows({w.codes.data(), w.scales.data(), outs, in}, 0, *packed).ok());
    return packed;
  }

  // What is multiplied for a row of a batch of `rows`.
  std::vector<double> Input(const std::vector<float>& a, int row, int rows, int in) const {
    const auto begin = a.begin() + int64_t{row} * in;
    std::vector<double> input(begin, begin + in);
    if (device_->name() != "cpu" && rows <= 16) {
      for (double& x : input) x = RoundToBf16(static_cast<float>(x));
      return input;
    }
    float largest = 0;
    for (const double x : input) largest = std::max(largest, std::fabs(static_cast<float>(x)));
    const float scale = largest / 448.0f, inverse = 448.0f / largest;
    for (double& x : input) x = E4m3Value(NearestE4m3(static_cast<float>(x) * inverse)) * double{scale};
    return input;
  }
};

struct Case {
  int rows, in, outs;
  bool narrow = false;      // inputs in bf16
  bool narrow_out = false;  // results in bf16
  bool bias = false;
  bool accumulate = false;
};

TEST_P(Fp8OpsTest, MultipliesCodesByRowsAsTheyAreRounded) {
  std::vector<Case> cases;
  for (const int rows : {1, 2, 9, 16, 17, 40}) {
    for (const auto& [in, outs] : {std::pair{16, 48}, {100, 33}, {31, 5}, {304, 80}, {1040, 16}}) {
      cases.push_back({rows, in, outs});
      cases.push_back({rows, in, outs, /*narrow=*/true, /*narrow_out=*/true});
    }
    for (const bool narrow_out : {false, true}) {
      cases.push_back({rows, 64, 48, true, narrow_out, /*bias=*/true});
      cases.push_back({rows, 64, 48, true, narrow_out, false, /*accumulate=*/true});
      cases.push_back({rows, 64, 48, false, narrow_out, true, true});
    }
  }
  for (const Case& c : cases) {
    const Weights w = RandomWeights(c.outs, c.in);
    const auto packed = Pack(w, c.outs, c.in);
    std::vector<float> a = Random(c.rows * c.in);
    if (c.narrow) std::transform(a.begin(), a.end(), a.begin(), RoundToBf16);
    std::vector<float> start = Random(c.rows * c.outs);
    if (c.narrow_out) std::transform(start.begin(), start.end(), start.begin(), RoundToBf16);
    const std::vector<float> bias = Random(c.outs);
    const auto wide_in = OnDevice(a), bias_there = OnDevice(bias);
    const auto narrow_in = OnDevice(Narrow(a));
    const std::vector<float> before = c.accumulate ? start : Poisoned(start.size());
    const auto wide = OnDevice(before);
    const auto narrow = OnDevice(Narrow(before));
    ops_->Gemm(c.narrow ? narrow_in.View(c.rows, c.in) : wide_in.View(c.rows, c.in), *packed,
               c.bias ? bias_there.data() : nullptr, c.accumulate,
               c.narrow_out ? narrow.View(c.rows, c.outs) : wide.View(c.rows, c.outs), {});
    std::vector<float> found = wide.Read().value();
    if (c.narrow_out) {
      const std::vector<Bf16> bits = narrow.Read().value();
      std::transform(bits.begin(), bits.end(), found.begin(), ToFloat);
    }
    for (int r = 0; r < c.rows; ++r) {
      const std::vector<double> input = Input(a, r, c.rows, c.in);
      for (int o = 0; o < c.outs; ++o) {
        double sum = (c.bias ? bias[o] : 0.0) + (c.accumulate ? start[r * c.outs + o] : 0.0);
        double size = 1e-3 + std::fabs(sum);
        for (int i = 0; i < c.in; ++i) {
          const double product = input[i] * E4m3Value(w.codes[o * c.in + i]) * double{w.scales[o]};
          sum += product;
          size += std::fabs(product);
        }
        ASSERT_LE(std::fabs(found[r * c.outs + o] - sum),
                  2e-6 * size + (c.narrow_out ? 0x1p-8 * std::fabs(sum) : 0.0))
            << c.rows << " rows, " << c.in << " to " << c.outs << ": row " << r << " output " << o;
      }
    }
  }
}

// Numbers become codes with the largest of each output at 448.
TEST_P(Fp8OpsTest, RoundsNumbersToTheNearestCodes) {
  for (const auto& [outs, in] : {std::pair{48, 64}, {33, 100}}) {
    auto numbers = Random(outs * in, 0.05f);
    std::fill_n(numbers.begin() + 3 * in, in, 0.0f);
    Weights w{std::vector<uint8_t>(outs * in), std::vector<float>(outs)};
    for (int o = 0; o < outs; ++o) {
      float largest = 0;
      for (int i = 0; i < in; ++i) largest = std::max(largest, std::fabs(numbers[o * in + i]));
      w.scales[o] = largest / 448.0f;
      for (int i = 0; i < in && largest > 0; ++i) {
        w.codes[o * in + i] = NearestE4m3(numbers[o * in + i] * (448.0f / largest));
      }
    }
    const auto codes = Pack(w, outs, in);
    const auto rounded = ops_->Pack(TensorView::Of(numbers.data(), outs, in), WeightFormat::kFp8).value();
    EXPECT_EQ(rounded->format(), WeightFormat::kFp8);
    for (const int rows : {3, 20}) {
      const auto a = OnDevice(Narrow(Random(rows * in)));
      const auto one = OnDevice(Poisoned(rows * outs)), other = OnDevice(Poisoned(rows * outs));
      ops_->Gemm(a.View(rows, in), *codes, nullptr, false, one.View(rows, outs), {});
      ops_->Gemm(a.View(rows, in), *rounded, nullptr, false, other.View(rows, outs), {});
      const std::vector<float> wanted = one.Read().value();
      EXPECT_EQ(other.Read().value(), wanted);
      for (int r = 0; r < rows; ++r) EXPECT_EQ(wanted[r * outs + 3], 0.0f);
    }
  }
}

// A number that is none shows in all that it has a part in, and nowhere else; zeros are zeros.
TEST_P(Fp8OpsTest, ShowsNumbersThatAreNone) {
  constexpr int kIn = 80, kOuts = 33;
  Weights w = RandomWeights(kOuts, kIn);
  w.codes[3 * kIn + 40] = 0x7f;
  w.codes[4 * kIn] = 0xff;
  auto numbers = Random(kOuts * kIn);
  numbers[3 * kIn + 7] = kNan;
  numbers[4 * kIn + 79] = -kInfinity;
  const auto kept = Pack(w, kOuts, kIn);
  const auto rounded = ops_->Pack(TensorView::Of(numbers.data(), kOuts, kIn), WeightFormat::kFp8).value();
  for (const int rows : {5, 19}) {
    auto a = Random(rows * kIn);
    a[kIn + 70] = kInfinity;
    a[2 * kIn] = kNan;
    std::fill_n(a.begin() + 3 * kIn, kIn, 0.0f);
    const auto a_there = OnDevice(Narrow(a));
    for (const PackedMatrix* matrix : {kept.get(), rounded.get()}) {
      const auto out_there = OnDevice(Poisoned(rows * kOuts));
      ops_->Gemm(a_there.View(rows, kIn), *matrix, nullptr, false, out_there.View(rows, kOuts), {});
      const std::vector<float> out = out_there.Read().value();
      for (int r = 0; r < rows; ++r) {
        for (int o = 0; o < kOuts; ++o) {
          const bool none = o == 3 || o == 4 || r == 1 || r == 2;
          EXPECT_EQ(std::isfinite(out[r * kOuts + o]), !none) << rows << " rows: " << r << " " << o;
          if (!none && r == 3) {
            EXPECT_EQ(out[r * kOuts + o], 0.0f);
          }
        }
      }
    }
  }
}

// What rounding both factors to a number of four bits loses of a product: stated for MODELS.md.
TEST_P(Fp8OpsTest, LosesAsMuchAsItsRoundings) {
  constexpr int kRows = 24, kIn = 512, kOuts = 64;
  const auto a = Narrow(Random(kRows * kIn));
  auto w = Random(kOuts * kIn, 0.02f);
  const auto packed = ops_->Pack(TensorView::Of(w.data(), kOuts, kIn), WeightFormat::kFp8).value();
  const auto a_there = OnDevice(a);
  const auto out = OnDevice(Poisoned(kRows * kOuts));
  ops_->Gemm(a_there.View(kRows, kIn), *packed, nullptr, false, out.View(kRows, kOuts), {});
  const std::vector<float> found = out.Read().value();
  double error = 0, power = 0;
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOuts; ++o) {
      double sum = 0;
      for (int i = 0; i < kIn; ++i) sum += double{ToFloat(a[r * kIn + i])} * w[o * kIn + i];
      error += (found[r * kOuts + o] - sum) * (found[r * kOuts + o] - sum);
      power += sum * sum;
    }
  }
  // Each factor is off by up to 1/16 of itself, .026 as a root of the mean square: .037 together.
  const double share = std::sqrt(error / power);
  EXPECT_GT(share, 0.025);
  EXPECT_LT(share, 0.05);
}

INSTANTIATE_TEST_SUITE_P(Devices, Fp8OpsTest, ::testing::ValuesIn(kDevices), DeviceLabel);

}  // namespace
}  // namespace aludel
