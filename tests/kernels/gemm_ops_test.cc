#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/library_gemm.h"
#include "tests/kernels/ops_fixture.h"

namespace aludel {
namespace {

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

// Rows of the input and of the result with gaps behind them, which are neither read nor written.
TEST_P(OpsTest, GemmLeavesGapsBetweenRowsAlone) {
  const int gap = 32;
  for (const auto& [rows, in, out_features] : {std::tuple{3, 64, 48}, {40, 96, 130}, {64, 256, 512}}) {
    auto a = Narrow(Poisoned(rows * (in + gap)));
    auto w = Random(out_features * in);
    const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), WeightFormat::kBf16).value();
    std::vector<double> expected(rows * out_features);
    for (int t = 0; t < rows; ++t) {
      const auto row = Narrow(Random(in));
      std::copy(row.begin(), row.end(), a.begin() + t * (in + gap));
      for (int o = 0; o < out_features; ++o) {
        for (int i = 0; i < in; ++i) {
          expected[t * out_features + o] += double{ToFloat(row[i])} * ToFloat(ToBf16(w[o * in + i]));
        }
      }
    }
    const auto a_there = OnDevice(a);
    for (const int behind : {0, gap}) {
      const int stride = out_features + behind;
      const auto out = OnDevice(Poisoned(rows * stride));
      ops_->Gemm(a_there.View(rows, in + gap).Cols(0, in), *packed, nullptr, false,
                 out.View(rows, stride).Cols(0, out_features), {});
      const std::vector<float> found = out.Read().value();
      std::vector<float> results;
      for (int t = 0; t < rows; ++t) {
        const auto row = found.begin() + t * stride;
        results.insert(results.end(), row, row + out_features);
        ASSERT_TRUE(std::all_of(row + out_features, row + stride, [](float x) { return std::isnan(x); }));
      }
      ExpectNear(results, expected, 1e-4);
    }
  }
}

// What a row gives does not depend on its neighbors, nor on threads: serving alone and in a batch agree.
TEST_P(OpsTest, GemmGivesARowTheSameAloneAndAmongOthers) {
  if (device_->name() != "cpu" || GetParam().instructions == "onednn")
    GTEST_SKIP() << "promised by our CPU kernels";
  const bool library = GetParam().instructions.empty() && cpu::LibraryGemm::HasTiles();  // multiplies bf16
  // Of many outputs few rows take several panels of weights at once.
  const int rows = 61, in = 300;
  for (const int out_features : {77, 1100}) {
    for (const WeightFormat format : kFormats) {
      if (library && format == WeightFormat::kBf16) continue;
      auto a = Random(rows * in);
      auto narrow = Narrow(a);
      auto w = Random(out_features * in);
      const auto packed = ops_->Pack(TensorView::Of(w.data(), out_features, in), format).value();
      const TensorView input = format == WeightFormat::kF32 ? TensorView::Of(a.data(), rows, in)
                                                            : TensorView::Of(narrow.data(), rows, in);
      std::vector<float> together(rows * out_features);
      ops_->Gemm(input, *packed, nullptr, false, TensorView::Of(together.data(), rows, out_features), {});
      for (int begin = 0, number = 0; begin < rows; ++number) {
        const int some = std::min(1 + number % 8, rows - begin);
        std::vector<float> found(some * out_features);
        ops_->Gemm(input.Rows(begin, some), *packed, nullptr, false,
                   TensorView::Of(found.data(), some, out_features), {});
        const std::vector<float> want(together.begin() + begin * out_features,
                                      together.begin() + (begin + some) * out_features);
        ASSERT_EQ(found, want) << Name(format) << ", " << some << " rows of " << out_features;
        begin += some;
      }
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
                                               {16, 2048, 50},
                                               {1, 97, 1040},
                                               {4, 127, 1100},
                                               {6, 64, 1056}}) {
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

// Also where the bias cancels most of the product: they are rounded together.
TEST_P(OpsTest, GemmStoresBf16WithAndWithoutBias) {
  for (const auto& [rows, in, out_features] :
       {std::tuple{5, 64, 40}, {40, 64, 40}, {33, 72, 29}, {3, 70, 1003}}) {
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

}  // namespace
}  // namespace aludel
