#include "kernels/token_quantizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

// Normal values and one channel that is far larger, as keys have them.
std::vector<float> Vector(int64_t width, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(width);
  for (float& value : x) value = normal(random);
  x[width / 3] += 40;
  return x;
}

// H x in blocks, from the matrix's definition: H[i][j] = (-1)^popcount(i & j) / sqrt(block).
std::vector<double> ReferenceRotation(const std::vector<double>& x, int64_t block) {
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t begin = i / block * block;
    for (int64_t j = 0; j < block; ++j) {
      const bool minus = std::popcount((i - begin) & static_cast<size_t>(j)) % 2 != 0;
      out[i] += (minus ? -1 : 1) * x[begin + j] / std::sqrt(static_cast<double>(block));
    }
  }
  return out;
}

double Length(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

std::vector<float> RoundTrip(const TokenQuantizer& quantizer, std::vector<float> x) {
  std::vector<uint8_t> codes(quantizer.code_bytes());
  const Bf16 scale = quantizer.Encode(x.data(), codes.data());
  std::vector<float> back(x.size());
  quantizer.Decode(scale, codes.data(), back.data());
  return back;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return std::sqrt(sum);
}

TEST(RotateHadamard, AgreesWithTheMatrixAndUndoesItself) {
  for (const int64_t length : {1, 2, 4, 32, 128}) {
    const std::vector<float> x = Vector(length, 1);
    std::vector<float> rotated = x;
    RotateHadamard(rotated.data(), length);
    const std::vector<double> want = ReferenceRotation({x.begin(), x.end()}, length);
    for (int64_t i = 0; i < length; ++i) EXPECT_NEAR(rotated[i], want[i], 1e-5) << length << " " << i;
    RotateHadamard(rotated.data(), length);
    EXPECT_LT(Distance(rotated, x), 1e-4) << length;
  }
}

TEST(TokenQuantizer, BlockIsTheLargestPowerOfTwoThatDividesTheWidth) {
  const auto block = [](int64_t width) { return TokenQuantizer(4, width).block(); };
  EXPECT_EQ(block(1024), 128);
  EXPECT_EQ(block(128), 128);
  EXPECT_EQ(block(320), 64);
  EXPECT_EQ(block(96), 32);
  EXPECT_EQ(block(6), 2);
}

// The example of FORMAT.md: (1, 2, 3, -4) rotates to (1, 3, 2, -4).
TEST(TokenQuantizer, CodesAreThoseOfTheFormatDocument) {
  std::vector<float> x = {1, 2, 3, -4};
  std::vector<uint8_t> codes(4);
  EXPECT_EQ(TokenQuantizer(8, 4).Encode(x.data(), codes.data()).bits, 0x3d02);
  EXPECT_THAT(codes, ElementsAre(0x20, 0x5f, 0x3f, 0x82));
  x = {1, 2, 3, -4};
  codes.resize(2);
  EXPECT_EQ(TokenQuantizer(4, 4).Encode(x.data(), codes.data()).bits, 0x3f13);
  EXPECT_THAT(codes, ElementsAre(0x52, 0x93));
}

TEST(TokenQuantizer, AgreesWithDoublesAndKeepsItsDistortionBound) {
  for (const int bits : {8, 4}) {
    for (const int64_t width : {2, 96, 128, 1024}) {
      const TokenQuantizer quantizer(bits, width);
      const int limit = bits == 8 ? 127 : 7;
      const std::vector<float> x = Vector(width, 7 + static_cast<uint32_t>(width));
      std::vector<float> work = x;
      std::vector<uint8_t> codes(quantizer.code_bytes());
      const Bf16 scale = quantizer.Encode(work.data(), codes.data());
      ASSERT_TRUE(TokenQuantizer::ValidScale(scale));
      const double step = ToFloat(scale);
      const std::vector<double> rotated = ReferenceRotation({x.begin(), x.end()}, quantizer.block());
      double largest = 0;
      for (const double value : rotated) largest = std::max(largest, std::fabs(value));
      EXPECT_GE(step * limit, largest * (1 - 1e-5));
      EXPECT_LE(step * limit, largest * (1 + 1.0 / 128 + 1e-5));

      std::vector<double> levels(width);
      for (int64_t i = 0; i < width; ++i) {
        const int nibble = codes[i / 2] >> (i % 2 * 4) & 0xf;
        levels[i] = bits == 8 ? static_cast<int8_t>(codes[i]) : nibble - (nibble >= 8 ? 16 : 0);
        // The nearest level, where f32 did not land on the other side of a tie.
        EXPECT_LE(std::fabs(levels[i] - rotated[i] / step), 0.5 + 1e-4);
        levels[i] *= step;
      }
      std::vector<float> decoded(width);
      quantizer.Decode(scale, codes.data(), decoded.data());
      const std::vector<double> want = ReferenceRotation(levels, quantizer.block());
      std::vector<double> error(width);
      for (int64_t i = 0; i < width; ++i) {
        EXPECT_NEAR(decoded[i], want[i], 2e-5 * largest);
        error[i] = decoded[i] - x[i];
      }
      EXPECT_LE(Length(error), step / 2 * std::sqrt(static_cast<double>(width)) * (1 + 1e-3));
    }
  }
}

// One channel of 100 over 127 of about 1: on its own scale of 100 / 7 every other channel would vanish.
TEST(TokenQuantizer, RotationKeepsSmallChannelsBesideAnOutlier) {
  std::vector<float> x = Vector(128, 3);
  x[5] = 100;
  std::vector<float> small = x;
  small[5] = 0;
  EXPECT_LT(Distance(RoundTrip(TokenQuantizer(4, 128), x), x),
            0.7 * Distance(small, std::vector<float>(128, 0)));
}

TEST(TokenQuantizer, ZeroComesBackAsZero) {
  for (const int bits : {8, 4}) {
    EXPECT_EQ(RoundTrip(TokenQuantizer(bits, 32), std::vector<float>(32, 0)), std::vector<float>(32, 0));
  }
}

TEST(TokenQuantizer, VectorsWithoutAScaleAreRefused) {
  const TokenQuantizer quantizer(8, 4);
  std::vector<uint8_t> codes(4);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::max()}) {
    std::vector<float> x = {1, bad, 0, 0};
    EXPECT_FALSE(TokenQuantizer::ValidScale(quantizer.Encode(x.data(), codes.data()))) << bad;
  }
}

TEST(TokenQuantizer, OnlyScalesThatCannotOverflowAreValid) {
  EXPECT_TRUE(TokenQuantizer::ValidScale({0}));
  EXPECT_TRUE(TokenQuantizer::ValidScale(ToBf16(std::ldexp(1.0f, 112))));
  EXPECT_FALSE(TokenQuantizer::ValidScale(ToBf16(std::ldexp(1.0f, 113))));
  for (const uint16_t bits : {0x7f80, 0x7fc0, 0xff80, 0xbf80, 0x8000}) {
    EXPECT_FALSE(TokenQuantizer::ValidScale({bits})) << bits;
  }
  const TokenQuantizer quantizer(8, 128);
  std::vector<float> x(128);
  quantizer.Decode(ToBf16(std::ldexp(1.0f, 112)), std::vector<uint8_t>(128, 0x80).data(), x.data());
  EXPECT_TRUE(std::all_of(x.begin(), x.end(), [](float value) { return std::isfinite(value); }));
}

}  // namespace
}  // namespace aludel
