#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/gemm/fp8_gemm.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/aligned_copy.h"
#include "tests/kernels/e4m3_reference.h"

namespace aludel::cuda {
namespace {

// The kernels' own source, run on the host by simt.h and held against loops in double.

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Fp8GemmTest : public ::testing::Test {
 protected:
  Fp8GemmTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  std::vector<float> Random(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  template <typename T>
  static std::vector<T> As(const std::vector<float>& values) {
    std::vector<T> converted(values.size());
    std::transform(values.begin(), values.end(), converted.begin(), [](float value) {
      if constexpr (std::is_same_v<T, Bf16>) {
        return ToBf16(value);
      } else {
        return value;
      }
    });
    return converted;
  }
  static float Wide(float value) { return value; }
  static float Wide(Bf16 value) { return ToFloat(value); }
  template <typename T>
  static constexpr DType kType = std::is_same_v<T, Bf16> ? DType::kBf16 : DType::kF32;

  template <typename In>
  void CheckRows(int rows, int cols, int stride);
  template <typename Out>
  void CheckSums(int rows, int cols, bool bias, bool accumulate);
  void CheckProduct(int rows, int in, int outs, bool bias, bool accumulate, bool narrow);

  std::mt19937_64 random_;
};

TEST_F(Fp8GemmTest, CodesBecomeTheirNumbersAsBf16) {
  for (int code = 0; code < 256; ++code) {
    if (std::isnan(E4m3Value(code))) continue;
    // At each place of a word, among others.
    for (int place = 0; place < 4; ++place) {
      const uint32_t others = 0x3a7e0183u & ~(0xffu << (8 * place));
      uint32_t pairs[2];
      E4m3ToBf16(others | static_cast<uint32_t>(code) << (8 * place), pairs);
      for (int i = 0; i < 4; ++i) {
        const auto half = static_cast<uint16_t>(pairs[i / 2] >> (i % 2 * 16));
        const int wanted = i == place ? code : static_cast<int>(others >> (8 * i) & 0xffu);
        EXPECT_EQ(ToFloat(Bf16{half}), E4m3Value(wanted)) << code << " at " << place << ", " << i;
      }
    }
  }
}

template <typename In>
void Fp8GemmTest::CheckRows(int rows, int cols, int stride) {
  std::vector<float> numbers(rows * stride, kNan);
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) numbers[r * stride + c] = Wide(As<In>(Random(1))[0]);
  }
  // Rows of zeros, with numbers that are none, and too small for a scale.
  const auto row = [&](int r) { return numbers.begin() + int64_t{r} * stride; };
  if (rows > 1) std::fill_n(row(1), cols, 0.0f);
  if (rows > 2) row(2)[cols - 1] = -kInfinity;
  if (rows > 3) row(3)[0] = kNan;
  if (rows > 4) std::fill_n(row(4), cols, 1e-38f);
  const AlignedCopy<In> there(As<In>(numbers));
  const int64_t padded = Fp8Padded(cols);
  const AlignedCopy<uint8_t> codes(std::vector<uint8_t>(rows * padded, 0x55));
  const AlignedCopy<float> scales(std::vector<float>(rows, kNan));
  const TensorView view{there.data(), kType<In>, rows, cols, stride};
  const Fp8RowsArgs args{view, codes.data(), scales.data()};
  simt::Launch({static_cast<unsigned>(rows)}, {kFp8RowThreads}, kFp8RowThreads / 32 * sizeof(uint32_t),
               random_(), [&](char* shared) {
                 auto* const largest = reinterpret_cast<uint32_t*>(shared);
                 if (TakesVectors(view)) {
                   QuantizeFp8Row<In, true>(args, largest);
                 } else {
                   QuantizeFp8Row<In, false>(args, largest);
                 }
               });
  for (int r = 0; r < rows; ++r) {
    float largest = 0;
    for (int c = 0; c < cols; ++c) largest = std::max(largest, std::fabs(Wide(there.data()[r * stride + c])));
    if (r == 2 || r == 3) {
      EXPECT_FALSE(std::isfinite(scales.data()[r])) << r;
    } else {
      EXPECT_EQ(scales.data()[r], largest / 448.0f) << r;
    }
    for (int64_t c = 0; c < padded; ++c) {
      const bool zero = c >= cols || (r >= 1 && r <= 4);
      const int wanted = zero ? 0 : NearestE4m3(Wide(there.data()[r * stride + c]) * (448.0f / largest));
      ASSERT_EQ(codes.data()[r * padded + c], wanted) << rows << " x " << cols << ": " << r << ", " << c;
    }
  }
}

TEST_F(Fp8GemmTest, RowsBecomeTheNearestCodesAndAScale) {
  for (const auto& [rows, cols, stride] :
       {std::tuple{6, 64, 72}, {6, 33, 33}, {1, 2056, 2056}, {5, 8, 8}, {7, 24, 24}, {2, 5000, 5001}}) {
    CheckRows<float>(rows, cols, stride);
    CheckRows<Bf16>(rows, cols, stride);
  }
}

template <typename Out>
void Fp8GemmTest::CheckSums(int rows, int cols, bool with_bias, bool accumulate) {
  const int64_t sums_stride = Fp8Padded(cols), stride = cols + 8;
  const std::vector<float> sums = Random(rows * sums_stride), a_scales = Random(rows);
  const std::vector<float> w_scales = Random(sums_stride), bias = Random(sums_stride);
  const std::vector<Out> start = As<Out>(Random(rows * stride));
  const AlignedCopy<float> sums_there(sums), w_there(w_scales), bias_there(bias);
  const AlignedCopy<Out> out(start);
  const Fp8SumsArgs args{sums_there.data(),
                         sums_stride,
                         a_scales.data(),
                         w_there.data(),
                         with_bias ? bias_there.data() : nullptr,
                         accumulate,
                         {out.data(), kType<Out>, rows, cols, stride}};
  simt::LaunchAlone({static_cast<unsigned>(rows)}, {64}, [&](char*) {
    if (TakesVectors(args.out)) {
      ScaleFp8Row<Out, true>(args);
    } else {
      ScaleFp8Row<Out, false>(args);
    }
  });
  for (int r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < stride; ++c) {
      const float before = Wide(start[r * stride + c]), found = Wide(out.data()[r * stride + c]);
      if (c >= cols) {
        ASSERT_EQ(found, before);
        continue;
      }
      const double wanted = double{sums[r * sums_stride + c]} * a_scales[r] * w_scales[c] +
                            (with_bias ? bias[c] : 0.0) + (accumulate ? before : 0.0);
      ASSERT_NEAR(found, wanted, (std::is_same_v<Out, Bf16> ? 0x1p-8 : 1e-6) * (1 + std::fabs(wanted)));
    }
  }
}

TEST_F(Fp8GemmTest, SumsAreScaledByRowAndColumn) {
  for (const auto& [rows, cols] : {std::pair{3, 640}, {2, 31}, {1, 8}}) {
    for (const bool bias : {false, true}) {
      for (const bool accumulate : {false, true}) {
        CheckSums<float>(rows, cols, bias, accumulate);
        CheckSums<Bf16>(rows, cols, bias, accumulate);
      }
    }
  }
}

void Fp8GemmTest::CheckProduct(int rows, int in, int outs, bool with_bias, bool accumulate, bool narrow) {
  const int64_t padded = Fp8Padded(in), a_stride = (in + 7) / 8 * 8 + 8, stride = outs + 3;
  // Zeros behind the rows and the last row, as they are packed; behind rows of `a` numbers that must not be multiplied.
  std::vector<uint8_t> codes(Fp8Padded(outs) * padded, 0);
  for (int o = 0; o < outs; ++o) {
    for (int i = 0; i < in; ++i) {
      auto& code = codes[o * padded + i];
      do {
        code = static_cast<uint8_t>(random_());
      } while (std::isnan(E4m3Value(code)));
    }
  }
  const std::vector<float> scales = Random(outs), bias = Random(outs);
  std::vector<float> a(rows * a_stride, kNan);
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < in; ++i) a[r * a_stride + i] = RoundToBf16(Random(1)[0]);
  }
  std::vector<float> start(rows * stride, kNan);
  for (int r = 0; r < rows && accumulate; ++r) {
    for (int o = 0; o < outs; ++o) start[r * stride + o] = RoundToBf16(Random(1)[0]);
  }
  const AlignedCopy<uint8_t> w_there(codes);
  const AlignedCopy<Bf16> a_there(As<Bf16>(a));
  const AlignedCopy<float> wide(start);
  const AlignedCopy<Bf16> small(As<Bf16>(start));
  const Fp8SkinnyArgs args{w_there.data(),
                           scales.data(),
                           a_there.data(),
                           a_stride,
                           in,
                           with_bias ? bias.data() : nullptr,
                           accumulate,
                           {narrow ? static_cast<void*>(small.data()) : wide.data(),
                            narrow ? DType::kBf16 : DType::kF32, rows, outs, stride}};
  simt::Launch({static_cast<unsigned>(SkinnyTiles(outs))}, {kSkinnyThreads}, kSkinnySumBytes, random_(),
               [&](char* shared) {
                 auto* const sums = reinterpret_cast<float*>(shared);
                 rows <= 8 ? SkinnyFp8<1>(args, sums) : SkinnyFp8<2>(args, sums);
               });
  for (int r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < stride; ++o) {
      const float found = narrow ? ToFloat(small.data()[r * stride + o]) : wide.data()[r * stride + o];
      if (o >= outs) {
        ASSERT_TRUE(std::isnan(found));
        continue;
      }
      double sum = (with_bias ? bias[o] : 0.0) + (accumulate ? start[r * stride + o] : 0.0);
      double size = 1.0;
      for (int i = 0; i < in; ++i) {
        const double product =
            double{a[r * a_stride + i]} * E4m3Value(codes[o * padded + i]) * double{scales[o]};
        sum += product;
        size += std::fabs(product);
      }
      ASSERT_NEAR(found, sum, 1e-6 * size + (narrow ? 0x1p-8 * std::fabs(sum) : 0.0))
          << rows << " rows, " << in << " to " << outs << ": row " << r << " output " << o;
    }
  }
}

TEST_F(Fp8GemmTest, FewRowsAreMultipliedAsTheyAre) {
  // Less than a lane's inputs, a step, a run of a warp, of all warps, and more; outputs that end inside a tile.
  for (const auto& [rows, in, outs] : {std::tuple{1, 5, 3},
                                       {2, 16, 16},
                                       {8, 72, 17},
                                       {9, 64, 40},
                                       {3, 300, 33},
                                       {16, 2048, 16},
                                       {1, 2100, 20},
                                       {5, 4370, 16}}) {
    CheckProduct(rows, in, outs, false, false, false);
  }
  CheckProduct(4, 96, 24, true, false, false);
  CheckProduct(4, 96, 24, false, true, false);
  CheckProduct(12, 96, 24, true, true, true);
  CheckProduct(3, 96, 24, false, false, true);
}

}  // namespace
}  // namespace aludel::cuda
