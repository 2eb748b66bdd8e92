#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device_options.h"
#include "kernels/open_device.h"
#include "kernels/replay_stats.h"
#include "kernels/token_quantizer.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/device_array.h"
#include "tests/kernels/latent_problem.h"
#include "tests/kernels/sample_problem.h"

namespace aludel {
namespace {

// Every operation of every device against a double-precision loop written from its formula in ops.h, on fresh
// random inputs. Inputs and outputs go through device memory.

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8,
                                     WeightFormat::kInt4};

class OpsTest : public ::testing::TestWithParam<DeviceOptions> {
 protected:
  void SetUp() override {
    auto device = OpenDevice(GetParam());
    if (absl::IsFailedPrecondition(device.status())) {
      GTEST_SKIP() << device.status().message();
    }
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    ops_ = &device_->ops();
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  template <typename T>
  DeviceArray<T> OnDevice(const std::vector<T>& host) {
    return DeviceArray<T>(*device_, host);
  }

  std::vector<float> Random(size_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  // Outputs start as NaN, so that what an operation leaves out shows.
  static std::vector<float> Poisoned(size_t count) {
    return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN());
  }

  static void ExpectNear(const std::vector<float>& found, const std::vector<double>& expected,
                         double tolerance) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_LE(std::fabs(found[i] - expected[i]), tolerance * (1.0 + std::fabs(expected[i])))
          << "element " << i << ": " << found[i] << ", want " << expected[i];
    }
  }

  static std::vector<Bf16> Narrow(const std::vector<float>& values) {
    std::vector<Bf16> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), [](float value) { return ToBf16(value); });
    return narrow;
  }

  std::unique_ptr<Device> device_;
  Ops* ops_ = nullptr;
  std::mt19937_64 random_;
};

TEST_P(OpsTest, RmsNormIsTheFormula) {
  for (const int cols : {1, 7, 16, 33, 256, 1000}) {
    const int rows = 11;
    const auto x = Random(rows * cols, 3.0f);
    const auto w = Random(cols);
    const auto x_there = OnDevice(x), w_there = OnDevice(w), out = OnDevice(Poisoned(rows * cols));
    ops_->RmsNorm(x_there.View(rows, cols), w_there.data(), 1e-5f, out.View(rows, cols), {});
    std::vector<double> expected(rows * cols);
    for (int t = 0; t < rows; ++t) {
      double sum = 0;
      for (int c = 0; c < cols; ++c) sum += double{x[t * cols + c]} * x[t * cols + c];
      for (int c = 0; c < cols; ++c) {
        expected[t * cols + c] = x[t * cols + c] / std::sqrt(sum / cols + 1e-5) * w[c];
      }
    }
    ExpectNear(out.Read().value(), expected, 2e-6);
  }
}

TEST_P(OpsTest, GemmMultipliesAddsBiasAndAccumulates) {
  for (const auto& [rows, in, out_features] :
       {std::tuple{1, 8, 5}, {2, 31, 7}, {3, 64, 96}, {17, 100, 33}, {64, 256, 512}}) {
    const auto a = Random(rows * in);
    auto w = Random(out_features * in);
    const auto bias = Random(out_features);
    const auto start = Random(rows * out_features);
    const auto a_there = OnDevice(a), bias_there = OnDevice(bias);
    const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), WeightFormat::kF32).value();
    for (const bool accumulate : {false, true}) {
      const auto out = OnDevice(accumulate ? start : Poisoned(rows * out_features));
      ops_->Gemm(a_there.View(rows, in), *packed, bias_there.data(), accumulate, out.View(rows, out_features),
                 {});
      std::vector<double> expected(rows * out_features);
      for (int t = 0; t < rows; ++t) {
        for (int o = 0; o < out_features; ++o) {
          double sum = bias[o] + (accumulate ? start[t * out_features + o] : 0.0);
          for (int i = 0; i < in; ++i) sum += double{a[t * in + i]} * w[o * in + i];
          expected[t * out_features + o] = sum;
        }
      }
      ExpectNear(out.Read().value(), expected, 1e-4);
    }
  }
}

// What a row gives does not depend on its neighbors, nor on threads: serving alone and in a batch agree.
TEST_P(OpsTest, GemmGivesARowTheSameAloneAndAmongOthers) {
  if (device_->name() != "cpu" || GetParam().instructions == "onednn")
    GTEST_SKIP() << "promised by our CPU kernels";
  const int rows = 61, in = 300, out_features = 77;
  for (const WeightFormat format : kFormats) {
    auto a = Random(rows * in);
    auto narrow = Narrow(a);
    auto w = Random(out_features * in);
    const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), format).value();
    const TensorView input = format == WeightFormat::kF32 ? TensorView::Of(a.data(), rows, in)
                                                          : TensorView::Of(narrow.data(), rows, in);
    std::vector<float> together(rows * out_features), alone(out_features);
    ops_->Gemm(input, *packed, nullptr, false, TensorView::Of(together.data(), rows, out_features), {});
    for (int r = 0; r < rows; ++r) {
      ops_->Gemm(input.Rows(r, 1), *packed, nullptr, false, TensorView::Of(alone.data(), 1, out_features),
                 {});
      const std::vector<float> row(together.begin() + r * out_features,
                                   together.begin() + (r + 1) * out_features);
      ASSERT_EQ(row, alone) << Name(format) << " row " << r;
    }
  }
}

TEST_P(OpsTest, AMatrixPackedInPiecesIsTheMatrixPackedAtOnce) {
  for (const WeightFormat format : kFormats) {
    const bool wide = format == WeightFormat::kF32;
    for (const auto& [in, out_features] : {std::pair{64, 512}, {100, 333}, {72, 80}}) {
      auto w = Random(out_features * in);
      auto narrow = Narrow(w);
      if (!wide) std::transform(narrow.begin(), narrow.end(), w.begin(), ToFloat);
      const TensorView wide_view = TensorView::Of(w.data(), out_features, in);
      const TensorView view = wide ? wide_view : TensorView::Of(narrow.data(), out_features, in);
      const auto whole = ops_->Pack(view, format).value();
      const auto pieces = ops_->NewPacked(out_features, in, format).value();
      // From the last piece to the first, alternately from f32 and bf16.
      const int64_t block = pieces->row_block();
      for (int64_t begin = (out_features - 1) / block * block; begin >= 0; begin -= block) {
        const int64_t rows = std::min(block, out_features - begin);
        const TensorView& source = begin / block % 2 == 0 ? view : wide_view;
        ASSERT_TRUE(ops_->PackRows(source.Rows(begin, rows), begin, *pieces).ok());
      }
      const auto a = Random(5 * in);
      const auto a_narrow = Narrow(a);
      const auto a_there = OnDevice(a);
      const auto a_narrow_there = OnDevice(a_narrow);
      const auto left = OnDevice(Poisoned(5 * out_features)), right = OnDevice(Poisoned(5 * out_features));
      const TensorView input = wide ? a_there.View(5, in) : a_narrow_there.View(5, in);
      ops_->Gemm(input, *whole, nullptr, false, left.View(5, out_features), {});
      ops_->Gemm(input, *pieces, nullptr, false, right.View(5, out_features), {});
      EXPECT_EQ(left.Read().value(), right.Read().value()) << Name(format) << " " << out_features;
    }
  }
}

TEST_P(OpsTest, GemmInBf16RoundsOnlyItsInputs) {
  for (const auto& [rows, in, out_features] : {std::tuple{1, 33, 5},
                                               {2, 64, 32},
                                               {5, 127, 65},
                                               {9, 128, 48},
                                               {12, 32, 31},
                                               {27, 97, 130},
                                               {1, 1032, 70},
                                               {16, 2048, 50}}) {
    const auto a = Narrow(Random(rows * in));
    auto w = Narrow(Random(out_features * in));
    const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), WeightFormat::kBf16).value();
    const auto a_there = OnDevice(a);
    const auto out = OnDevice(Poisoned(rows * out_features));
    ops_->Gemm(a_there.View(rows, in), *packed, nullptr, false, out.View(rows, out_features), {});
    std::vector<double> expected(rows * out_features, 0.0);
    for (int t = 0; t < rows; ++t) {
      for (int o = 0; o < out_features; ++o) {
        for (int i = 0; i < in; ++i) {
          expected[t * out_features + o] += double{ToFloat(a[t * in + i])} * ToFloat(w[o * in + i]);
        }
      }
    }
    ExpectNear(out.Read().value(), expected, 1e-4);
  }
}

// Numbers that int8 and int4 hold as they are: in every block of kScaleInputs one is the largest integer, the
// others are integers of the same scale, a power of two of the block's own.
std::vector<float> Representable(std::mt19937_64& random, int rows, int cols, int lowest, int highest) {
  std::uniform_int_distribution<int> integer(lowest, highest), exponent(-6, 3);
  std::vector<float> values(rows * cols);
  for (int r = 0; r < rows; ++r) {
    float scale = 1.0f;
    for (int c = 0; c < cols; ++c) {
      const bool first = c % kScaleInputs == 0;
      if (first) scale = std::ldexp(1.0f, exponent(random));
      values[r * cols + c] = scale * static_cast<float>(first ? lowest : integer(random));
    }
  }
  return values;
}

TEST_P(OpsTest, GemmOfWeightsWithScalesIsExactWhereNothingIsRounded) {
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const int lowest = format == WeightFormat::kInt8 ? -127 : -8;
    for (const auto& [rows, in, out_features] : {std::tuple{1, 33, 5},
                                                 {2, 64, 32},
                                                 {4, 31, 64},
                                                 {5, 127, 65},
                                                 {7, 2100, 40},
                                                 {12, 32, 31},
                                                 {27, 97, 130},
                                                 {70, 128, 96}}) {
      const auto a = Representable(random_, rows, in, -127, 127);
      auto w = Representable(random_, out_features, in, lowest, -1 - lowest);
      const auto bias = Random(out_features);
      const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), format).value();
      EXPECT_EQ(packed->format(), format);
      const auto start = Random(rows * out_features);
      const auto a_there = OnDevice(a), bias_there = OnDevice(bias), out = OnDevice(start);
      ops_->Gemm(a_there.View(rows, in), *packed, bias_there.data(), true, out.View(rows, out_features), {});
      std::vector<double> expected(rows * out_features);
      for (int t = 0; t < rows; ++t) {
        for (int o = 0; o < out_features; ++o) {
          double sum = double{bias[o]} + start[t * out_features + o];
          for (int i = 0; i < in; ++i) sum += double{a[t * in + i]} * w[o * in + i];
          expected[t * out_features + o] = sum;
        }
      }
      // Sums are of large terms that cancel; floats add them.
      const double size = 127.0 * 127.0 * 64.0 * std::sqrt(in);
      const std::vector<float> found = out.Read().value();
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_LE(std::fabs(found[i] - expected[i]), 1e-6 * size)
            << Name(format) << " [" << rows << ", " << in << "] x " << out_features << " element " << i;
      }
    }
  }
}

// Half a step of every input times the weight, half a step of every weight times the input, and both.
TEST_P(OpsTest, GemmOfWeightsWithScalesLosesAtMostTheRounding) {
  const int rows = 9, in = 300, out_features = 70;
  const auto a = Narrow(Random(rows * in));
  auto w = Random(out_features * in, 0.02f);
  const auto a_there = OnDevice(a);
  const auto largest = [&](const auto& values, int row, int i) {
    double found = 0;
    const int begin = i / kScaleInputs * kScaleInputs;
    for (int j = begin; j < std::min<int>(in, begin + kScaleInputs); ++j) {
      found = std::max<double>(found, std::fabs(values(row * in + j)));
    }
    return found;
  };
  const auto a_value = [&](int i) { return ToFloat(a[i]); };
  const auto w_value = [&](int i) { return w[i]; };
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), format).value();
    const auto out = OnDevice(Poisoned(rows * out_features));
    ops_->Gemm(a_there.View(rows, in), *packed, nullptr, false, out.View(rows, out_features), {});
    const std::vector<float> found = out.Read().value();
    double error = 0, power = 0;
    for (int t = 0; t < rows; ++t) {
      for (int o = 0; o < out_features; ++o) {
        double sum = 0, bound = 0;
        for (int i = 0; i < in; ++i) {
          const double x = a_value(t * in + i), y = w_value(o * in + i);
          // A scale is rounded to 8 bits, and int4's may be as small as a ninth of the largest.
          const double x_step = largest(a_value, t, i) / 127;
          const double y_step = largest(w_value, o, i) / (format == WeightFormat::kInt8 ? 126.5 : 4.0);
          sum += x * y;
          bound += 0.51 * (x_step * std::fabs(y) + y_step * std::fabs(x) + x_step * y_step);
        }
        ASSERT_LE(std::fabs(found[t * out_features + o] - sum), bound) << Name(format);
        error += (found[t * out_features + o] - sum) * (found[t * out_features + o] - sum);
        power += sum * sum;
      }
    }
    // Random roundings cancel: uniform errors of a step's size.
    EXPECT_LE(std::sqrt(error / power), format == WeightFormat::kInt8 ? 0.012 : 0.11) << Name(format);
  }
}

TEST_P(OpsTest, GemmOfWeightsWithScalesShowsNumbersThatAreNone) {
  const int in = 80, out_features = 33;
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    auto w = Random(out_features * in);
    w[3 * in + 40] = std::numeric_limits<float>::quiet_NaN();
    const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), format).value();
    auto a = Random(2 * in);
    a[in + 70] = std::numeric_limits<float>::infinity();
    const auto a_there = OnDevice(a), out_there = OnDevice(Poisoned(2 * out_features));
    ops_->Gemm(a_there.View(2, in), *packed, nullptr, false, out_there.View(2, out_features), {});
    const std::vector<float> out = out_there.Read().value();
    for (int o = 0; o < out_features; ++o) {
      EXPECT_EQ(std::isfinite(out[o]), o != 3) << Name(format) << " " << o;
      EXPECT_FALSE(std::isfinite(out[out_features + o])) << Name(format) << " " << o;
    }
  }
}

TEST_P(OpsTest, SiluMulGatesAtEverySize) {
  const int rows = 5;
  for (const int cols : {1, 77, 64, 1000}) {
    auto gate_up = Random(rows * 2 * cols, 6.0f);
    gate_up[0] = -200.0f;  // exp would overflow a careless sigmoid
    gate_up[1] = 200.0f;
    const auto gate_up_there = OnDevice(gate_up), out = OnDevice(Poisoned(rows * cols));
    ops_->SiluMul(gate_up_there.View(rows, 2 * cols), out.View(rows, cols), {});
    const auto narrow = Narrow(gate_up);
    const auto narrow_there = OnDevice(narrow), narrow_out = OnDevice(Narrow(Poisoned(rows * cols)));
    ops_->SiluMul(narrow_there.View(rows, 2 * cols), narrow_out.View(rows, cols), {});
    const auto expected = [&](const auto& input) {
      std::vector<double> values;
      for (int t = 0; t < rows; ++t) {
        for (int c = 0; c < cols; ++c) {
          const double g = input(t * 2 * cols + c);
          values.push_back(g / (1.0 + std::exp(-g)) * input(t * 2 * cols + cols + c));
        }
      }
      return values;
    };
    ExpectNear(out.Read().value(), expected([&](int at) { return gate_up[at]; }), 2e-6);
    const std::vector<Bf16> narrow_found = narrow_out.Read().value();
    std::vector<float> found(narrow_found.size());
    std::transform(narrow_found.begin(), narrow_found.end(), found.begin(), ToFloat);
    ExpectNear(found, expected([&](int at) { return ToFloat(narrow[at]); }), 0x1p-8);
  }
}

TEST_P(OpsTest, SiluTakesAnySizeAndLargeValues) {
  const int rows = 5, cols = 77;
  auto x = Random(rows * cols, 6.0f);
  x[0] = -200.0f;
  x[1] = 200.0f;
  const auto x_there = OnDevice(x), out = OnDevice(Poisoned(rows * cols));
  ops_->Silu(x_there.View(rows, cols), out.View(rows, cols), {});
  std::vector<double> expected;
  for (const double value : x) expected.push_back(value / (1.0 + std::exp(-value)));
  ExpectNear(out.Read().value(), expected, 2e-6);
}

TEST_P(OpsTest, EmbedGatherAndConvertCopyRows) {
  const int vocab = 75, cols = 21;
  auto table = Random(vocab * cols);
  const std::vector<int32_t> ids = {74, 0, 33, 33};
  const TensorView host = TensorView::Of(table.data(), vocab, cols);
  const auto packed = ops_->Pack(host, WeightFormat::kF32).value();
  const auto rows = OnDevice(Poisoned(ids.size() * cols));
  ops_->Embed(ids, *packed, rows.View(ids.size(), cols), {});
  const std::vector<float> out = rows.Read().value();
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int c = 0; c < cols; ++c) EXPECT_EQ(out[t * cols + c], table[ids[t] * cols + c]);
  }
  const auto picked_there = OnDevice(Poisoned(2 * cols));
  const std::vector<int64_t> which = {2, 0};
  ops_->GatherRows(rows.View(ids.size(), cols), which, picked_there.View(2, cols), {});
  const std::vector<float> picked = picked_there.Read().value();
  for (int c = 0; c < cols; ++c) EXPECT_EQ(picked[c], table[33 * cols + c]);
  const auto narrow_there = OnDevice(std::vector<Bf16>(2 * cols));
  ops_->Convert(picked_there.View(2, cols), narrow_there.View(2, cols), {});
  const std::vector<Bf16> narrow = narrow_there.Read().value();
  for (int c = 0; c < 2 * cols; ++c) EXPECT_EQ(ToFloat(narrow[c]), RoundToBf16(picked[c]));
}

TEST_P(OpsTest, ATableThatIsTheHeadGivesTheRowsThatItIsMultipliedBy) {
  for (const int cols : {1, 8, 63, 64, 200}) {
    const int vocab = 70, count = 300;
    auto table = Random(vocab * cols);
    const auto packed = ops_->Pack(TensorView::Of(table.data(), vocab, cols), WeightFormat::kBf16).value();
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % vocab);
    const auto wide = OnDevice(Poisoned(count * cols));
    const auto narrow = OnDevice(std::vector<Bf16>(count * cols));
    ops_->Embed(ids, *packed, wide.View(count, cols), {});
    ops_->Embed(ids, *packed, narrow.View(count, cols), {});
    const std::vector<float> found = wide.Read().value();
    const std::vector<Bf16> found_narrow = narrow.Read().value();
    for (int t = 0; t < count; ++t) {
      for (int c = 0; c < cols; ++c) {
        const float expected = RoundToBf16(table[ids[t] * cols + c]);
        ASSERT_EQ(found[t * cols + c], expected) << t << " " << c;
        ASSERT_EQ(ToFloat(found_narrow[t * cols + c]), expected) << t << " " << c;
      }
    }
  }
}

TEST_P(OpsTest, ConvertRoundsAndWidensWholeRowsOfEverySize) {
  for (const int cols : {8, 24, 1000, 1001}) {
    const auto x = Random(3 * cols);
    const auto x_there = OnDevice(x), wide_there = OnDevice(Poisoned(3 * cols));
    const auto narrow_there = OnDevice(Narrow(Poisoned(3 * cols)));
    ops_->Convert(x_there.View(3, cols), narrow_there.View(3, cols), {});
    ops_->Convert(narrow_there.View(3, cols), wide_there.View(3, cols), {});
    const std::vector<float> wide = wide_there.Read().value();
    for (int c = 0; c < 3 * cols; ++c) ASSERT_EQ(wide[c], RoundToBf16(x[c])) << cols << " " << c;
    const auto part_there = OnDevice(Narrow(Poisoned(3 * (cols + 5))));
    ops_->Convert(narrow_there.View(3, cols), part_there.View(3, cols + 5).Cols(2, cols), {});
    const std::vector<Bf16> part = part_there.Read().value();
    for (int c = 0; c < 3 * cols; ++c) {
      ASSERT_EQ(ToFloat(part[c / cols * (cols + 5) + 2 + c % cols]), wide[c])
          << "same type, " << cols << " " << c;
    }
  }
}

// Also where the bias cancels most of the product: they are rounded together.
TEST_P(OpsTest, GemmStoresBf16WithAndWithoutBias) {
  for (const auto& [rows, in, out_features] : {std::tuple{5, 64, 40}, {40, 64, 40}, {33, 72, 29}}) {
    const auto a = Narrow(Random(rows * in));
    auto w = Narrow(Random(out_features * in));
    const auto bias = Random(out_features, 8.0f);
    const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), WeightFormat::kBf16).value();
    const auto a_there = OnDevice(a);
    const auto bias_there = OnDevice(bias);
    for (const bool with_bias : {false, true}) {
      const auto out = OnDevice(Narrow(Poisoned(rows * out_features)));
      ops_->Gemm(a_there.View(rows, in), *packed, with_bias ? bias_there.data() : nullptr, false,
                 out.View(rows, out_features), {});
      const std::vector<Bf16> narrow = out.Read().value();
      std::vector<float> found;
      std::vector<double> expected;
      for (int t = 0; t < rows; ++t) {
        for (int o = 0; o < out_features; ++o) {
          double sum = with_bias ? bias[o] : 0.0f;
          for (int i = 0; i < in; ++i) sum += double{ToFloat(a[t * in + i])} * ToFloat(w[o * in + i]);
          expected.push_back(sum);
          found.push_back(ToFloat(narrow[t * out_features + o]));
        }
      }
      // Half a step of bf16 of the result: where that is small, a step of its parts is more than is allowed.
      ExpectNear(found, expected, 0x1p-8);
    }
  }
}

TEST_P(OpsTest, HeadNormNormalizesEveryHeadOfColumnsInPlace) {
  const int rows = 3, heads = 5, head_dim = 24, stride = heads * head_dim + 7;
  const auto x = Random(rows * stride, 2.0f);
  const auto w = Random(head_dim);
  const auto x_there = OnDevice(x), w_there = OnDevice(w);
  ops_->HeadNorm(x_there.View(rows, stride).Cols(7, heads * head_dim), head_dim, w_there.data(), 1e-6f, {});
  std::vector<double> expected(x.begin(), x.end());
  for (int t = 0; t < rows; ++t) {
    for (int h = 0; h < heads; ++h) {
      const size_t at = t * stride + 7 + h * head_dim;
      double sum = 0;
      for (int d = 0; d < head_dim; ++d) sum += double{x[at + d]} * x[at + d];
      for (int d = 0; d < head_dim; ++d) {
        expected[at + d] = x[at + d] / std::sqrt(sum / head_dim + 1e-6) * w[d];
      }
    }
  }
  ExpectNear(x_there.Read().value(), expected, 2e-6);
}

// Two sequences of one batch whose pages lie scattered in one pool.
struct PagedCase {
  int heads, kv_heads, head_dim;
  int64_t window;
  DType dtype;
};

class PagedOpsTest : public OpsTest {
 protected:
  static constexpr int kBlockTokens = 4;
  static constexpr int kBlocks = 40;

  void Check(const PagedCase& c);
};

// The rotated keys, values and outputs of one sequence, recomputed in double from rows it was given.
void Reference(const PagedCase& c, const std::vector<std::vector<float>>& keys,
               const std::vector<std::vector<float>>& values, const float* q, int64_t position,
               absl::Span<const float> inverse_frequency, std::vector<double>* out) {
  const int half = c.head_dim / 2;
  const auto rotate = [&](const float* x, int64_t at, bool round) {
    std::vector<double> rotated(c.head_dim);
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(at) * inverse_frequency[i];
      const double a = round ? RoundToBf16(x[i]) : x[i];
      const double b = round ? RoundToBf16(x[i + half]) : x[i + half];
      rotated[i] = a * std::cos(angle) - b * std::sin(angle);
      rotated[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    if (round) {
      for (double& value : rotated) value = RoundToBf16(static_cast<float>(value));
    }
    return rotated;
  };
  const bool round = c.dtype == DType::kBf16;
  out->assign(c.heads * c.head_dim, 0.0);
  for (int head = 0; head < c.heads; ++head) {
    const int kv_head = head / (c.heads / c.kv_heads);
    const std::vector<double> query = rotate(q + head * c.head_dim, position, false);
    const int64_t first = c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
    std::vector<double> weights;
    double maximum = -1e300;
    for (int64_t p = first; p <= position; ++p) {
      const std::vector<double> key = rotate(keys[p].data() + kv_head * c.head_dim, p, round);
      double dot = 0;
      for (int d = 0; d < c.head_dim; ++d) dot += query[d] * key[d];
      weights.push_back(dot / std::sqrt(c.head_dim));
      maximum = std::max(maximum, weights.back());
    }
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - maximum);
    for (int64_t p = first; p <= position; ++p) {
      for (int d = 0; d < c.head_dim; ++d) {
        const float value = values[p][kv_head * c.head_dim + d];
        (*out)[head * c.head_dim + d] += weights[p - first] / total * (round ? RoundToBf16(value) : value);
      }
    }
  }
}

void PagedOpsTest::Check(const PagedCase& c) {
  const int kv_dim = c.kv_heads * c.head_dim;
  const int q_dim = c.heads * c.head_dim;
  std::vector<float> inverse_frequency;
  for (int i = 0; i < c.head_dim / 2; ++i) {
    inverse_frequency.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / c.head_dim)));
  }
  const size_t plane = size_t{kBlocks} * kBlockTokens * kv_dim;
  // Unwritten slots hold NaN: reading past a sequence's end cannot hide.
  const auto wide_k = OnDevice(Poisoned(plane)), wide_v = OnDevice(Poisoned(plane));
  const auto narrow_k = OnDevice(Narrow(Poisoned(plane))), narrow_v = OnDevice(Narrow(Poisoned(plane)));
  const bool bf16 = c.dtype == DType::kBf16;
  const PagedKv kv{bf16 ? static_cast<void*>(narrow_k.data()) : wide_k.data(),
                   bf16 ? static_cast<void*>(narrow_v.data()) : wide_v.data(),
                   c.dtype,
                   kBlockTokens,
                   c.kv_heads,
                   c.head_dim};
  std::vector<int32_t> order(kBlocks);
  for (int i = 0; i < kBlocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random_);
  const absl::Span<const int32_t> pages[2] = {{order.data(), 20}, {order.data() + 20, 20}};

  std::vector<std::vector<float>> keys[2], values[2];
  const RopeTable rope{inverse_frequency};
  const AttentionParams params{c.heads, c.kv_heads, c.head_dim, 1.0f / std::sqrt(float(c.head_dim)),
                               c.window};
  // Chunks of odd sizes, the second sequence one token at a time at the end.
  const int64_t chunks[][2] = {{5, 1}, {30, 70}, {1, 1}, {17, 1}};
  for (const auto& chunk : chunks) {
    const int64_t rows = chunk[0] + chunk[1];
    const auto q = Random(rows * q_dim), k = Random(rows * kv_dim), v = Random(rows * kv_dim);
    const auto q_there = OnDevice(q), k_there = OnDevice(k), v_there = OnDevice(v);
    SequenceRows sequences[2];
    int64_t row = 0;
    for (int s = 0; s < 2; ++s) {
      sequences[s] = {row, chunk[s], static_cast<int64_t>(keys[s].size()), pages[s]};
      for (int64_t r = 0; r < chunk[s]; ++r, ++row) {
        keys[s].emplace_back(k.begin() + row * kv_dim, k.begin() + (row + 1) * kv_dim);
        values[s].emplace_back(v.begin() + row * kv_dim, v.begin() + (row + 1) * kv_dim);
      }
    }
    const auto out_there = OnDevice(Poisoned(rows * q_dim));
    const TensorView q_view = q_there.View(rows, q_dim);
    ops_->RopeWriteKv(k_there.View(rows, kv_dim), v_there.View(rows, kv_dim), rope, sequences, kv, {});
    ops_->Rope(q_view, c.head_dim, rope, sequences, {});
    ops_->Attention(q_view, params, sequences, kv, out_there.View(rows, q_dim), {});
    const std::vector<float> out = out_there.Read().value();
    for (const SequenceRows& sequence : sequences) {
      const int s = sequence.blocks.data() == pages[0].data() ? 0 : 1;
      for (int64_t r = 0; r < sequence.rows; ++r) {
        std::vector<double> expected;
        const int64_t at = sequence.row_begin + r;
        Reference(c, keys[s], values[s], q.data() + at * q_dim, sequence.position_begin + r,
                  inverse_frequency, &expected);
        const std::vector<float> found(out.begin() + at * q_dim, out.begin() + (at + 1) * q_dim);
        // Over a bf16 cache queries and probabilities may be rounded to bf16 (2^-9 each at most), and a
        // rotated key may fall on the other side of a rounding step than in double.
        ExpectNear(found, expected, bf16 ? 1.5e-2 : 2e-5);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Turned by every angle that a long context reaches, (1, 0) becomes (cos, sin).
TEST_P(OpsTest, RopeTurnsByTheAngleItself) {
  const std::vector<float> inverse_frequency = {1.0f, 0.7316f, 0.0127f, 3.1e-5f, 8.8e-8f};
  const int half = static_cast<int>(inverse_frequency.size());
  const RopeTable rope{inverse_frequency, 1.25f};
  std::vector<int64_t> positions = {0, 1, 2, 3, 4, 5, 6, 7, 1000, 131071, 1 << 20, (int64_t{1} << 31) - 1};
  for (int i = 0; i < 200; ++i) positions.push_back(random_() % (1 << 22));
  const auto rows = static_cast<int64_t>(positions.size());
  std::vector<float> x(rows * 2 * half, 0.0f);
  std::vector<SequenceRows> sequences;
  for (int64_t r = 0; r < rows; ++r) {
    std::fill_n(x.begin() + r * 2 * half, half, 1.0f);
    sequences.push_back({r, 1, positions[r], {}});
  }
  const auto there = OnDevice(x);
  ops_->Rope(there.View(rows, 2 * half), 2 * half, rope, sequences, {});
  const std::vector<float> found = there.Read().value();
  for (int64_t r = 0; r < rows; ++r) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[r]) * double{inverse_frequency[i]};
      // A float's rounding, twice; and at 2^31 what a double keeps of the angle.
      EXPECT_NEAR(found[r * 2 * half + i], 1.25 * std::cos(angle), 5e-7) << positions[r];
      EXPECT_NEAR(found[r * 2 * half + half + i], 1.25 * std::sin(angle), 5e-7) << positions[r];
    }
  }
}

// What a handoff brings as bf16 and what a model computes in f32 become the same pages, whatever these
// are of.
TEST_P(OpsTest, PagesAreTheSameFromBf16AndFromF32) {
  constexpr int kKvHeads = 3, kHeadDim = 32, kBlockTokens = 8, kRows = 37, kBlocks = 9;
  constexpr int64_t kKvDim = kKvHeads * kHeadDim, kPlane = int64_t{kBlocks} * kBlockTokens * kKvDim;
  std::vector<float> inverse_frequency;
  for (int i = 0; i < kHeadDim / 2; ++i)
    inverse_frequency.push_back(static_cast<float>(std::pow(5e5, -2.0 * i / kHeadDim)));
  const RopeTable rope{inverse_frequency};
  const std::vector<Bf16> k = Narrow(Random(kRows * kKvDim)), v = Narrow(Random(kRows * kKvDim));
  const auto widened = [](const std::vector<Bf16>& narrow) {
    std::vector<float> wide;
    for (const Bf16 value : narrow) wide.push_back(ToFloat(value));
    return wide;
  };
  const std::vector<int32_t> blocks = {7, 0, 3, 8, 1, 5};
  const std::vector<SequenceRows> sequences = {{0, kRows, 5, blocks}};
  const auto pages = [&](const TensorView& k_there, const TensorView& v_there, auto empty) {
    const auto k_pages = OnDevice(empty), v_pages = OnDevice(empty);
    const DType type = k_pages.View(1, 1).dtype;
    const PagedKv kv{k_pages.data(), v_pages.data(), type, kBlockTokens, kKvHeads, kHeadDim};
    ops_->RopeWriteKv(k_there, v_there, rope, sequences, kv, {});
    return std::make_pair(k_pages.Read().value(), v_pages.Read().value());
  };
  const auto same = [](const auto& one, const auto& other) {
    return std::memcmp(one.data(), other.data(), one.size() * sizeof(one[0])) == 0;
  };
  const auto k_narrow = OnDevice(k), v_narrow = OnDevice(v);
  const auto k_wide = OnDevice(widened(k)), v_wide = OnDevice(widened(v));
  const auto check = [&](auto empty) {
    const auto from_narrow = pages(k_narrow.View(kRows, kKvDim), v_narrow.View(kRows, kKvDim), empty);
    const auto from_wide = pages(k_wide.View(kRows, kKvDim), v_wide.View(kRows, kKvDim), empty);
    EXPECT_TRUE(same(from_narrow.first, from_wide.first));
    EXPECT_TRUE(same(from_narrow.second, from_wide.second));
    EXPECT_FALSE(same(from_narrow.first, empty));
    EXPECT_FALSE(same(from_narrow.second, empty));
  };
  check(Poisoned(kPlane));
  check(Narrow(Poisoned(kPlane)));
}

TEST_P(PagedOpsTest, AttendOverScatteredPagesInF32) {
  Check({8, 4, 32, 0, DType::kF32});
  Check({4, 4, 64, 0, DType::kF32});
  Check({6, 1, 96, 0, DType::kF32});
}

TEST_P(PagedOpsTest, AttendOverScatteredPagesInBf16) {
  Check({8, 2, 128, 0, DType::kBf16});
  Check({2, 1, 256, 0, DType::kBf16});
}

TEST_P(PagedOpsTest, AttendWithHeadsOfOddSizes) {
  Check({3, 3, 18, 0, DType::kF32});
  Check({3, 3, 18, 0, DType::kBf16});
  Check({26, 2, 80, 33, DType::kBf16});
}

TEST_P(PagedOpsTest, AttendWithinASlidingWindow) {
  Check({4, 2, 32, 1, DType::kF32});
  Check({4, 2, 32, 9, DType::kF32});
  Check({40, 1, 16, 70, DType::kBf16});
}

// Attention alone, over bf16 pages as long as an engine's, in every way that its work is cut on a GPU: rows
// and heads of a tile, several tiles, windows, decode steps, long pasts that are split, and batches of
// all these.
TEST_P(OpsTest, AttentionIsTheFormulaInEveryShape) {
  const std::vector<AttentionCase> cases = {
      {4, 2, 64, 16, 0, {{70, 0}}},
      {3, 1, 96, 16, 0, {{50, 9}}, true},
      {4, 1, 128, 16, 0, {{40, 100}}},
      {2, 1, 256, 16, 0, {{37, 31}}},
      {2, 2, 40, 8, 0, {{33, 0}, {1, 70}}},
      {7, 1, 64, 16, 0, {{1, 0}, {17, 64}, {2, 129}, {40, 3}}},
      {150, 1, 64, 16, 0, {{2, 5}, {1, 8}}},
      {4, 1, 64, 5, 100, {{40, 170}, {3, 400}}, true},
      {2, 1, 64, 16, 1, {{70, 130}}},
      {4, 1, 128, 16, 0, {{1, 2000}, {1, 0}, {1, 63}, {1, 64}, {1, 1023}}, true},
      {4, 2, 256, 16, 0, {{1, 700}, {2, 500}}},
      {3, 1, 96, 32, 300, {{1, 900}, {5, 700}}},
      {4, 2, 64, 16, 0, {{6, 1500}}},
      {4, 2, 128, 16, 0, {{20, 1000}, {1, 1500}, {130, 0}}, true},
      {34, 2, 64, 16, 0, {{1, 800}}},
      {1, 1, 128, 16, 0, {{129, 0}, {128, 128}, {5, 383}}},
      {8, 2, 128, 16, 200, {{300, 900}}, true},
      {4, 2, 64, 16, 0, {{700, 0}, {64, 1000}}},
  };
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c);
    const AttentionProblem problem(c, random_);
    const auto k = OnDevice(problem.k), v = OnDevice(problem.v);
    const auto q = OnDevice(problem.q);
    const auto narrow_q = OnDevice(Narrow(problem.q));
    const size_t out_size = problem.rows * problem.out_stride;
    const auto out = OnDevice(Poisoned(out_size));
    const auto narrow_out = OnDevice(Narrow(Poisoned(out_size)));
    const PagedKv kv{k.data(), v.data(), DType::kBf16, c.block_tokens, c.kv_heads, c.head_dim};
    const auto columns = [&](const TensorView& view) { return view.Cols(0, problem.q_dim()); };
    const TensorView q_view = columns(c.bf16_rows ? narrow_q.View(problem.rows, problem.q_stride)
                                                  : q.View(problem.rows, problem.q_stride));
    const TensorView out_view = columns(c.bf16_rows ? narrow_out.View(problem.rows, problem.out_stride)
                                                    : out.View(problem.rows, problem.out_stride));
    ops_->Attention(q_view, problem.params, problem.sequences, kv, out_view, {});
    std::vector<float> found = out.Read().value();
    if (c.bf16_rows) {
      const std::vector<Bf16> narrow = narrow_out.Read().value();
      std::transform(narrow.begin(), narrow.end(), found.begin(), ToFloat);
    }
    problem.Compare(found, [](const std::string& what) { FAIL() << what; });
  }
}

// Every device chooses the same token, beside whatever other rows.
TEST_P(OpsTest, SampleRowsChoosesTheTokenOfSampleRow) {
  for (const int64_t vocab : {1, 33, 1000, 4099, 32000, 128257}) {
    const int64_t rows = vocab > 10000 ? 6 : 40;
    std::vector<float> logits;
    std::vector<RowSampling> draws;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> row = RandomLogits(vocab, random_);
      logits.insert(logits.end(), row.begin(), row.end());
      draws.push_back(RandomSampling(vocab, random_));
    }
    logits[(rows - 1) * vocab] = std::numeric_limits<float>::quiet_NaN();
    const auto there = OnDevice(logits);
    const auto tokens = OnDevice(std::vector<int32_t>(rows, -7));
    ops_->SampleRows(there.View(rows, vocab), draws, tokens.data(), {});
    const std::vector<int32_t> found = tokens.Read().value();
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_EQ(found[r], SampleRow(&logits[r * vocab], vocab, draws[r])) << vocab << ": " << draws[r];
    }
    EXPECT_EQ(found.back(), kNoToken);
  }
}

TEST_P(OpsTest, LatentsBecomeTheBytesOfTheDefinitionAndComeBack) {
  for (const int64_t tokens : {1, 7, 128, 129, 1000}) {
    for (const int columns : {1, 33, 100}) {
      const LatentProblem problem(tokens, columns, random_);
      const auto z = OnDevice(problem.z);
      const auto bytes = OnDevice(std::vector<uint8_t>(problem.bytes.size(), 0xa5));
      const TensorView view{z.data(), DType::kF32, tokens, columns, problem.stride};
      ops_->PackLatents(view, 2.0f, problem.planes, bytes.data(), {});
      EXPECT_EQ(bytes.Read().value(), problem.bytes) << tokens << " tokens, " << columns << " latents";

      const int64_t first = tokens / 3;
      const auto back = OnDevice(Poisoned(tokens * columns));
      ops_->UnpackLatents(bytes.data(), problem.planes, first, 0.5f, back.View(tokens - first, columns), {});
      const std::vector<float> found = back.Read().value();
      for (int64_t t = first; t < tokens; ++t) {
        for (int i = 0; i < columns; ++i) {
          ASSERT_EQ(found[(t - first) * columns + i], 0.5f * static_cast<float>(problem.code(t, i)))
              << "token " << t << ", latent " << i;
        }
      }
    }
  }
}

TEST_P(OpsTest, TokensBecomeTheIntegersOfTheQuantizerAndComeBack) {
  for (const int bits : {8, 4}) {
    for (const int width : {2, 96, 128, 1024}) {
      const int tokens = 5;
      const TokenQuantizer quantizer(bits, width);
      const std::vector<float> values = Random(tokens * (width + 2), 3.0f);
      std::vector<Bf16> narrow(values.size());
      std::transform(values.begin(), values.end(), narrow.begin(), ToBf16);
      const auto wide_there = OnDevice(values);
      const auto narrow_there = OnDevice(narrow);
      for (const bool wide : {true, false}) {
        const auto scales = OnDevice(std::vector<uint8_t>(2 * tokens, 0xa5));
        const auto codes = OnDevice(std::vector<uint8_t>(tokens * quantizer.code_bytes(), 0xa5));
        const TensorView x = wide ? TensorView{wide_there.data(), DType::kF32, tokens, width, width + 2}
                                  : TensorView{narrow_there.data(), DType::kBf16, tokens, width, width + 2};
        ops_->QuantizeTokens(x, bits, scales.data(), codes.data(), {});
        const auto back = OnDevice(Poisoned(tokens * width));
        ops_->DequantizeTokens(scales.data(), codes.data(), bits, back.View(tokens, width), {});
        std::vector<uint8_t> want_scales, want_codes;
        std::vector<float> want;
        for (int t = 0; t < tokens; ++t) {
          std::vector<float> row(width);
          for (int i = 0; i < width; ++i) {
            const size_t at = t * (width + 2) + i;
            row[i] = wide ? values[at] : ToFloat(narrow[at]);
          }
          std::vector<uint8_t> row_codes(quantizer.code_bytes());
          const Bf16 scale = quantizer.Encode(row.data(), row_codes.data());
          want_scales.push_back(static_cast<uint8_t>(scale.bits));
          want_scales.push_back(static_cast<uint8_t>(scale.bits >> 8));
          want_codes.insert(want_codes.end(), row_codes.begin(), row_codes.end());
          quantizer.Decode(scale, row_codes.data(), row.data());
          want.insert(want.end(), row.begin(), row.end());
        }
        EXPECT_EQ(scales.Read().value(), want_scales) << bits << " bits, width " << width;
        EXPECT_EQ(codes.Read().value(), want_codes) << bits << " bits, width " << width;
        EXPECT_EQ(back.Read().value(), want) << bits << " bits, width " << width;
      }
    }
  }
}

// Copies on one stream wait for what they copy on another, whatever comes behind it there.
TEST_P(OpsTest, FollowersWaitForWhatTheyFollow) {
  const absl::StatusOr<Stream> stream = device_->CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  constexpr int kRows = 512, kCols = 1024;
  const auto x = OnDevice(Random(kRows * kCols)), y = OnDevice(Poisoned(kRows * kCols));
  std::vector<uint8_t> memory(kRows * kCols * sizeof(float));
  for (const bool pinned : {false, true}) {
    if (pinned) {
      ASSERT_TRUE(device_->Pin(absl::MakeSpan(memory)).ok());
    }
    for (int round = 0; round < 20; ++round) {
      const std::vector<float> values = Random(kRows * kCols);
      device_->CopyToDevice(x.data(), values.data(), memory.size(), {});
      for (int i = 0; i < 8; ++i) ops_->Convert(x.View(kRows, kCols), y.View(kRows, kCols), {});
      device_->Follow(*stream, {});
      device_->CopyToHost(memory.data(), y.data(), memory.size(), *stream);
      ASSERT_TRUE(device_->Synchronize(*stream).ok());
      EXPECT_TRUE(device_->Finished(*stream));
      ASSERT_EQ(std::memcmp(memory.data(), values.data(), memory.size()), 0) << "round " << round;
      ASSERT_TRUE(device_->Synchronize({}).ok());
    }
    if (pinned) device_->Unpin(absl::MakeSpan(memory));
  }
  device_->DestroyStream(*stream);
}

// Whether the device has made repeated work as one; a CPU never does.
void ExpectReplays(const Device& device, uint64_t most_eager) {
  if (device.name() == "cpu") return;
  const ReplayStats stats = device.replay_stats({});
  EXPECT_GT(stats.replayed, 0) << stats.reason;
  EXPECT_LE(stats.eager, most_eager) << stats.reason;
}

TEST_P(OpsTest, RepeatedWorkFollowsWhatItsHostArraysHold) {
  constexpr int kIds = 50, kCols = 24, kRows = 5;
  auto table = Random(kIds * kCols);
  const auto packed = ops_->Pack(TensorView::Of(table.data(), kIds, kCols), WeightFormat::kF32).value();
  const auto out = OnDevice(Poisoned(kRows * kCols)), gathered = OnDevice(Poisoned(2 * kCols));
  for (int round = 0; round < 10; ++round) {
    std::vector<int32_t> ids(kRows);
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % kIds);
    const std::vector<int64_t> rows = {static_cast<int64_t>(random_() % kRows), round % kRows};
    device_->Replay({1, 1}, {}, [&] {
      ops_->Embed(ids, *packed, out.View(kRows, kCols), {});
      ops_->GatherRows(out.View(kRows, kCols), rows, gathered.View(2, kCols), {});
    });
    std::vector<double> expected;
    for (const int64_t row : rows) {
      const auto begin = table.begin() + ids[row] * kCols;
      expected.insert(expected.end(), begin, begin + kCols);
    }
    ExpectNear(gathered.Read().value(), expected, 0);
  }
  ExpectReplays(*device_, /*most_eager=*/1);
}

TEST_P(OpsTest, RepeatedWorkThatChangesUnderItsKeyIsRunAsItIs) {
  const auto x = Random(40), y = Random(40);
  const auto x_there = OnDevice(x), y_there = OnDevice(y), out = OnDevice(Poisoned(40));
  for (int round = 0; round < 12; ++round) {
    const bool other = round % 4 == 3;
    const int rows = round == 10 ? 3 : 5;
    device_->Replay({1, 1}, {}, [&] {
      ops_->Convert(x_there.View(5, 8), out.View(5, 8), {});
      ops_->Convert((other ? y_there : x_there).View(5, 8).Rows(0, rows), out.View(5, 8).Rows(0, rows), {});
    });
    const std::vector<float>& expected = other ? y : x;
    ASSERT_EQ(out.Read().value(), expected) << round;
  }
  ExpectReplays(*device_, /*most_eager=*/12);
}

// The launches are those of the longest that a sequence may become.
TEST_P(OpsTest, RepeatedAttentionIsTheFormulaWhereverSequencesEnd) {
  const std::vector<AttentionCase> cases = {
      {4, 2, 64, 16, 0, {{1, 1300}, {1, 900}, {1, 40}}},
      {4, 1, 128, 16, 0, {{1, 1300}}, true},
      {4, 2, 128, 16, 100, {{1, 1300}, {1, 50}}},
      {2, 1, 256, 16, 0, {{1, 1300}, {1, 600}}},
      {34, 2, 64, 16, 0, {{1, 1300}}},
      {3, 3, 18, 8, 0, {{1, 1300}, {1, 7}}},
  };
  uint64_t key = 0;
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(testing::Message() << c);
    ++key;
    AttentionProblem problem(c, random_);
    const std::vector<SequenceRows> longest = problem.sequences;
    const auto k = OnDevice(problem.k), v = OnDevice(problem.v);
    const auto q = OnDevice(problem.q);
    const auto narrow_q = OnDevice(Narrow(problem.q));
    const PagedKv kv{k.data(), v.data(), DType::kBf16, c.block_tokens, c.kv_heads, c.head_dim};
    const auto out = OnDevice(Poisoned(problem.rows * problem.out_stride));
    const auto narrow_out = OnDevice(Narrow(Poisoned(problem.rows * problem.out_stride)));
    const TensorView q_view =
        (c.bf16_rows ? narrow_q.View(problem.rows, problem.q_stride) : q.View(problem.rows, problem.q_stride))
            .Cols(0, problem.q_dim());
    const TensorView out_view = (c.bf16_rows ? narrow_out.View(problem.rows, problem.out_stride)
                                             : out.View(problem.rows, problem.out_stride))
                                    .Cols(0, problem.q_dim());
    for (const int64_t end : {1, 63, 64, 65, 200, 511, 512, 513, 600, 700, 1000, 1024, 1025, 1200, 1300}) {
      SCOPED_TRACE(end);
      for (size_t s = 0; s < longest.size(); ++s) {
        const int64_t position = std::min(end - 1, longest[s].position_begin);
        problem.sequences[s].position_begin = position;
        problem.sequences[s].blocks = longest[s].blocks.subspan(0, position / c.block_tokens + 1);
      }
      device_->Replay({key, end}, {},
                      [&] { ops_->Attention(q_view, problem.params, problem.sequences, kv, out_view, {}); });
      std::vector<float> found = out.Read().value();
      if (c.bf16_rows) {
        const std::vector<Bf16> narrow = narrow_out.Read().value();
        std::transform(narrow.begin(), narrow.end(), found.begin(), ToFloat);
      }
      problem.Compare(found, [](const std::string& what) { FAIL() << what; });
    }
  }
  ExpectReplays(*device_, /*most_eager=*/3 * cases.size());
}

const DeviceOptions kDevices[] = {
    {.name = "cpu", .threads = 1},
    {.name = "cpu", .threads = 3},
    {.name = "cpu", .threads = 2, .instructions = "portable"},
    {.name = "cpu", .threads = 2, .instructions = "avx2"},
    {.name = "cpu", .threads = 2, .instructions = "avx512"},
    {.name = "cpu", .threads = 2, .instructions = "avx512_vnni"},
    {.name = "cpu", .threads = 2, .instructions = "avx512_bf16"},
    {.name = "cpu", .threads = 2, .instructions = "onednn"},
#ifdef ALUDEL_HAVE_CUDA
    {.name = "cuda:0"},
    {.name = "cuda:0", .instructions = "wgmma"},
#endif
};

std::string DeviceLabel(const ::testing::TestParamInfo<DeviceOptions>& info) {
  if (info.param.name != "cpu") return "Cuda" + info.param.instructions;
  return "CpuThreads" + std::to_string(info.param.threads) + info.param.instructions;
}

INSTANTIATE_TEST_SUITE_P(Devices, OpsTest, ::testing::ValuesIn(kDevices), DeviceLabel);
INSTANTIATE_TEST_SUITE_P(Devices, PagedOpsTest, ::testing::ValuesIn(kDevices), DeviceLabel);

TEST(Bf16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(RoundToBf16(1.0f), 1.0f);
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-8f), 1.0f);              // a tie, to even
  EXPECT_EQ(RoundToBf16(1.0f + 0x1.8p-7f), 1.0f + 0x1p-6f);  // a tie, to even, upwards
  EXPECT_TRUE(std::isnan(RoundToBf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(RoundToBf16(3.4e38f)));
}

}  // namespace
}  // namespace aludel
