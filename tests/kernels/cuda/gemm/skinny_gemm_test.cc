#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/gemm/skinny_gemm.cuh"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/pack_scaled.h"
#include "tests/kernels/cuda/aligned_copy.h"

namespace aludel::cuda {
namespace {

// The kernels' own source, run on the host by simt.h and held against a loop in double.

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr int kEach = std::numeric_limits<int>::max();  // a block for each tile

struct Case {
  int rows, in, out;
  bool accumulate = false;
  bool bias = false;
  bool bf16_out = false;
};

class SkinnyGemmTest : public ::testing::Test {
 protected:
  SkinnyGemmTest() {
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

  // Runs `kernel` on what `args` has of w and a, and compares with a [rows, in] W^T from numbers; within
  // `bound` of the sum of the products' sizes.
  // By `blocks` blocks, or one for each tile where that is less.
  template <typename Kernel>
  void Check(const Case& c, int blocks, SkinnyArgs args, const std::vector<float>& w,
             const std::vector<float>& a, double bound, const Kernel& kernel) {
    const int64_t stride = c.out + 3;  // with canaries beyond the columns
    const std::vector<float> bias = Random(c.out);
    std::vector<float> start(c.rows * stride, kNan);
    if (c.accumulate) {
      for (int r = 0; r < c.rows; ++r) {
        for (int o = 0; o < c.out; ++o) start[r * stride + o] = RoundToBf16(Random(1)[0]);
      }
    }
    std::vector<float> out = start;
    std::vector<Bf16> narrow(out.size());
    std::transform(start.begin(), start.end(), narrow.begin(), ToBf16);
    args.in = c.in;
    args.bias = c.bias ? bias.data() : nullptr;
    args.accumulate = c.accumulate;
    args.out = {c.bf16_out ? static_cast<void*>(narrow.data()) : out.data(),
                c.bf16_out ? DType::kBf16 : DType::kF32, c.rows, c.out, stride};
    simt::Launch({static_cast<unsigned>(std::min(blocks, SkinnyTiles(c.out)))}, {kSkinnyThreads},
                 kSkinnySharedBytes, random_(),
                 [&](char* shared) { kernel(args, reinterpret_cast<float*>(shared)); });
    if (c.bf16_out) std::transform(narrow.begin(), narrow.end(), out.begin(), ToFloat);
    for (int r = 0; r < c.rows; ++r) {
      for (int o = 0; o < c.out; ++o) {
        double sum = (c.bias ? bias[o] : 0.0) + (c.accumulate ? start[r * stride + o] : 0.0);
        double size = 1.0;
        for (int k = 0; k < c.in; ++k) {
          const double product = double{a[r * c.in + k]} * w[o * c.in + k];
          sum += product;
          size += std::fabs(product);
        }
        ASSERT_NEAR(out[r * stride + o], sum, bound * size + (c.bf16_out ? 0x1p-8 * std::fabs(sum) : 0.0))
            << c.rows << " rows, " << c.in << " to " << c.out << ": row " << r << " output " << o;
      }
      for (int64_t o = c.out; o < stride; ++o) ASSERT_TRUE(std::isnan(out[r * stride + o]));
    }
  }

  void CheckBf16(const Case& c);
  void CheckScaled(const Case& c, WeightFormat format);

  std::mt19937_64 random_;
};

std::vector<Bf16> Narrow(const std::vector<float>& values) {
  std::vector<Bf16> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), ToBf16);
  return narrow;
}

void SkinnyGemmTest::CheckBf16(const Case& c) {
  std::vector<float> a = Random(c.rows * c.in), w = Random(c.out * c.in);
  for (float& value : a) value = RoundToBf16(value);
  for (float& value : w) value = RoundToBf16(value);
  const int64_t a_stride = c.in + 16;
  std::vector<float> wide(c.rows * a_stride, kNan);
  for (int r = 0; r < c.rows; ++r) std::copy_n(&a[r * c.in], c.in, &wide[r * a_stride]);
  const AlignedCopy<Bf16> a_there(Narrow(wide)), w_there(Narrow(w));
  SkinnyArgs args{};
  args.w = w_there.data();
  args.a = a_there.data();
  args.a_stride = a_stride;
  for (const int blocks : {1, 2, kEach}) {
    Check(c, blocks, args, w, a, 1e-6, [&](const SkinnyArgs& of, float* shared) {
      c.rows <= 8 ? SkinnyBf16<1>(of, shared) : SkinnyBf16<2>(of, shared);
    });
  }
}

void SkinnyGemmTest::CheckScaled(const Case& c, WeightFormat format) {
  const std::vector<float> a = Random(c.rows * c.in);
  std::vector<float> w = Random(c.out * c.in);
  const int64_t row_bytes = ScaledRowBytes(c.in, format), groups = RunsOf(c.in) * kRunGroups;
  std::vector<char> bytes(c.out * row_bytes);
  std::vector<Bf16> scales(c.out * groups);
  const TensorView host = TensorView::Of(w.data(), c.out, c.in);
  for (int o = 0; o < c.out; ++o) PackScaledRow(host, o, format, &bytes[o * row_bytes], &scales[o * groups]);
  const AlignedCopy<char> w_there(bytes);
  const AlignedCopy<Bf16> scales_there(scales);
  // What the device stands for is near what was packed. Of a group's largest, int8 may be off by half of
  // 1/127 and its scale's rounding, int4 by 2/9: where ninths are its steps, it ends at 7 of them.
  const float share = format == WeightFormat::kInt8 ? 0.01f : 0.23f;
  for (int o = 0; o < c.out; ++o) {
    float* const row = &w[o * c.in];
    for (int begin = 0; begin < c.in; begin += kScaleInputs) {
      const int end = std::min<int>(c.in, begin + kScaleInputs);
      float largest = 0;
      for (int k = begin; k < end; ++k) largest = std::max(largest, std::abs(row[k]));
      for (int k = begin; k < end; ++k) {
        const float number = ScaledWeight(w_there.data(), scales_there.data(), c.in, format, o, k);
        ASSERT_NEAR(number, row[k], share * largest);
        row[k] = number;
      }
    }
  }
  const AlignedCopy<int8_t> values(std::vector<int8_t>(c.rows * groups * kScaleInputs, 99));
  const AlignedCopy<float> a_scales(std::vector<float>(groups * kSkinnyRows, kNan));
  std::vector<float> a_memory = a;
  const TensorView a_view = TensorView::Of(a_memory.data(), c.rows, c.in);
  simt::Launch({static_cast<unsigned>(RunsOf(c.in)), kSkinnyRows}, {32}, 0, random_(),
               [&](char*) { QuantizeRun(a_view, values.data(), a_scales.data()); });
  // The rounded inputs are the ones to compare with.
  std::vector<float> rounded(a.size());
  for (int r = 0; r < c.rows; ++r) {
    for (int k = 0; k < c.in; ++k) {
      rounded[r * c.in + k] = a_scales.data()[k / kScaleInputs * kSkinnyRows + r] *
                              values.data()[r * groups * kScaleInputs + Int8Byte(k)];
      ASSERT_NEAR(rounded[r * c.in + k], a[r * c.in + k], 0.025);
    }
  }
  SkinnyArgs args{};
  args.w = w_there.data();
  args.w_scales = scales_there.data();
  args.a = values.data();
  args.a_scales = a_scales.data();
  const bool few = c.rows <= 8;
  Check(c, kEach, args, w, rounded, 1e-6,
        format == WeightFormat::kInt8
            ? (few ? SkinnyScaled<WeightFormat::kInt8, 1> : SkinnyScaled<WeightFormat::kInt8, 2>)
            : (few ? SkinnyScaled<WeightFormat::kInt4, 1> : SkinnyScaled<WeightFormat::kInt4, 2>));
}

const Case kCases[] = {
    {1, 8, 5},
    {1, 1024, 40, true},
    {2, 264, 16, false, true},
    {7, 2048 + 72, 33, true, true},
    {8, 136, 17, false, false, true},
    {9, 520, 31, false, true, true},
    {16, 1000, 48, true, true, true},
    {4, 640, 115},
};

TEST_F(SkinnyGemmTest, OfBf16IsTheProduct) {
  for (const Case& c : kCases) CheckBf16(c);
}

TEST_F(SkinnyGemmTest, OfInt8IsTheProductOfWhatWasRounded) {
  for (const Case& c : kCases) CheckScaled(c, WeightFormat::kInt8);
  CheckScaled({3, 33, 7}, WeightFormat::kInt8);
}

// Of infinities, of what is no number, and of numbers whose scale has no reciprocal, scales are of that kind and codes zeros.
TEST_F(SkinnyGemmTest, WhatHasNoScaleHasNoCodes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::bit_cast<float>(0x7fffffffu);  // as a GPU makes it, which a code's bits are taken of
  for (const float odd : {kInfinity, -kInfinity, nan, 1e-38f, 0.0f}) {
    std::vector<float> a(kRunInputs, 1.0f);
    for (int i = 0; i < kScaleInputs; ++i) a[i] = i % 3 == 0 ? odd : 0.0f;
    const AlignedCopy<int8_t> values(std::vector<int8_t>(kRunInputs, 99));
    const AlignedCopy<float> scales(std::vector<float>(kRunGroups * kSkinnyRows, -1.0f));
    simt::Launch({1, kSkinnyRows}, {32}, 0, random_(), [&](char*) {
      QuantizeRun(TensorView::Of(a.data(), 1, kRunInputs), values.data(), scales.data());
    });
    for (int i = 0; i < kRunInputs; ++i) {
      ASSERT_EQ(values.data()[Int8Byte(i)], i < kScaleInputs ? 0 : 127) << odd << " " << i;
    }
    const float scale = scales.data()[0];
    EXPECT_TRUE(std::isnan(odd) ? std::isnan(scale) : scale == std::fabs(odd) / 127.0f)
        << odd << ": " << scale;
  }
}

TEST_F(SkinnyGemmTest, RowsOfBf16AreRoundedAsThoseOfF32) {
  std::vector<Bf16> narrow = Narrow(Random(kRunInputs));
  std::vector<float> wide(kRunInputs);
  std::transform(narrow.begin(), narrow.end(), wide.begin(), ToFloat);
  const TensorView views[] = {TensorView::Of(wide.data(), 1, kRunInputs),
                              {narrow.data(), DType::kBf16, 1, kRunInputs, kRunInputs}};
  std::vector<std::vector<int8_t>> codes;
  std::vector<std::vector<float>> scales;
  for (const TensorView& view : views) {
    codes.emplace_back(kRunInputs, 99);
    scales.emplace_back(kRunGroups * kSkinnyRows, kNan);
    simt::Launch({1, kSkinnyRows}, {32}, 0, random_(),
                 [&](char*) { QuantizeRun(view, codes.back().data(), scales.back().data()); });
  }
  EXPECT_EQ(codes[0], codes[1]);
  EXPECT_EQ(scales[0], scales[1]);
}

TEST_F(SkinnyGemmTest, OfInt4IsTheProductOfWhatWasRounded) {
  for (const Case& c : kCases) CheckScaled(c, WeightFormat::kInt4);
  CheckScaled({12, 250, 19}, WeightFormat::kInt4);
}

}  // namespace
}  // namespace aludel::cuda
