#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/token_quantizer.cuh"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/aligned_copy.h"

namespace aludel::cuda {
namespace {

// The kernels' own source, run on the host by simt.h, gives the CPU's bits.
class TokenKernelTest : public ::testing::Test {
 protected:
  static constexpr int kTokens = 3;

  TokenKernelTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  TokenArgs ArgsOf(const TokenQuantizer& quantizer, int bits) {
    const auto block = static_cast<int>(quantizer.block());
    const auto width = static_cast<int>(quantizer.width());
    scales_.assign(2 * kTokens, 0xa5);
    codes_.assign(kTokens * quantizer.code_bytes(), 0xa5);
    return {width + 2, width,          block,        1.0f / std::sqrt(static_cast<float>(block)),
            bits,      scales_.data(), codes_.data()};
  }

  template <typename F>
  void Run(int width, const F& kernel) {
    simt::Launch({kTokens}, {kTokenThreads}, (width + 32) * sizeof(float), random_(),
                 [&](char* shared) { kernel(reinterpret_cast<float*>(shared)); });
  }

  std::mt19937_64 random_;
  std::vector<uint8_t> scales_, codes_;
};

TEST_F(TokenKernelTest, GivesTheCpusScalesCodesAndValues) {
  for (const int bits : {8, 4}) {
    for (const int width : {2, 6, 96, 128, 320, 1024, 2048}) {
      const TokenQuantizer quantizer(bits, width);
      std::normal_distribution<float> normal(0.0f, 2.0f);
      std::vector<float> values(kTokens * (width + 2), std::numeric_limits<float>::quiet_NaN());
      for (int t = 0; t < kTokens; ++t) {
        for (int i = 0; i < width; ++i) values[t * (width + 2) + i] = t == 1 ? 0.0f : normal(random_);
      }
      const AlignedCopy<float> there(values);
      const TokenArgs args = ArgsOf(quantizer, bits);
      Run(width, [&](float* shared) { QuantizeToken(there.data(), args, shared, shared + width); });
      std::vector<float> back(values.size(), std::numeric_limits<float>::quiet_NaN());
      Run(width, [&](float* shared) { DequantizeToken(args, back.data(), shared); });
      for (int t = 0; t < kTokens; ++t) {
        std::vector<float> row(values.begin() + t * (width + 2), values.begin() + t * (width + 2) + width);
        std::vector<uint8_t> codes(quantizer.code_bytes());
        const Bf16 scale = quantizer.Encode(row.data(), codes.data());
        ASSERT_EQ(scales_[2 * t] | scales_[2 * t + 1] << 8, scale.bits) << bits << " bits, width " << width;
        quantizer.Decode(scale, codes.data(), row.data());
        for (size_t i = 0; i < codes.size(); ++i)
          ASSERT_EQ(codes_[t * codes.size() + i], codes[i]) << width << " " << i;
        for (int i = 0; i < width; ++i) ASSERT_EQ(back[t * (width + 2) + i], row[i]) << width << " " << i;
      }
    }
  }
}

TEST_F(TokenKernelTest, WhatIsNotFiniteHasNoScale) {
  const int width = 640;
  const TokenQuantizer quantizer(8, width);
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), 3e38f}) {
    std::vector<float> values(kTokens * (width + 2), 1.5f);
    values[width + 2 + 500] = bad;
    values[width + 2 + 501] = bad == 3e38f ? bad : 0.0f;
    const AlignedCopy<float> there(values);
    const TokenArgs args = ArgsOf(quantizer, 8);
    Run(width, [&](float* shared) { QuantizeToken(there.data(), args, shared, shared + width); });
    for (int t = 0; t < kTokens; ++t) {
      EXPECT_EQ(IsScale(static_cast<uint16_t>(scales_[2 * t] | scales_[2 * t + 1] << 8)), t != 1) << bad;
    }
  }
}

}  // namespace
}  // namespace aludel::cuda
