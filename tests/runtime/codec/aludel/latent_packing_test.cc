#include "runtime/codec/aludel/latent_packing.h"

#include <cmath>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> Noise(int64_t count, float scale) {
  std::mt19937_64 random(std::random_device{}());
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<uint8_t> Pack(const std::vector<float>& z, int64_t tokens, const LatentGrid& grid,
                          LatentPacking packing) {
  std::vector<uint8_t> bytes(MaxPackedBytes(grid, packing, tokens));
  bytes.resize(PackLatents(z.data(), tokens, grid, packing, absl::MakeSpan(bytes)));
  return bytes;
}

class LatentPackingTest : public ::testing::TestWithParam<LatentPacking> {};

TEST_P(LatentPackingTest, LosesHalfAStepAtMostInsideTheRange) {
  for (const int64_t tokens : {1, 3, 8, 257, 5000}) {
    const LatentGrid grid{0.125f, {2, 3, 5, 8, 9, 13, 16}, std::vector<float>(7, 0.95f), 4};
    const auto rank = static_cast<int64_t>(grid.bits.size());
    const std::vector<float> z = Noise(tokens * rank, 2.0f);
    std::vector<float> back(z.size());
    const auto bytes = Pack(z, tokens, grid, GetParam());
    ASSERT_TRUE(UnpackLatents(bytes, tokens, grid, GetParam(), back.data()).ok());
    for (size_t i = 0; i < z.size(); ++i) {
      const float limit = 0.125f * static_cast<float>(1 << (grid.bits[i % rank] - 1));
      const float want = std::min(std::max(z[i], -limit), limit - 0.125f);
      EXPECT_LE(std::abs(back[i] - want), 0.0625f + 1e-6f) << "value " << i << " of " << z[i];
    }
  }
}

TEST_P(LatentPackingTest, ClampsInfinityAndTakesNanForZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> z = {infinity, -infinity, std::nanf(""), 1e30f};
  const LatentGrid grid{1.0f, {4}, {0.5f}, 4};
  std::vector<float> back(4);
  ASSERT_TRUE(UnpackLatents(Pack(z, 4, grid, GetParam()), 4, grid, GetParam(), back.data()).ok());
  EXPECT_THAT(back, ElementsAre(7.0f, -8.0f, 0.0f, 7.0f));
}

// A frame of none would not arrive.
TEST_P(LatentPackingTest, ZerosThatCostNothingAreNotAnEmptyPayload) {
  for (const int64_t tokens : {1, 2, 16}) {
    const LatentGrid grid{1.0f, {4, 4}, {1e-6f, 1e-6f}, 4};
    const std::vector<float> z(2 * tokens, 0.0f);
    const auto bytes = Pack(z, tokens, grid, GetParam());
    EXPECT_GT(bytes.size(), 0u);
    std::vector<float> back(z.size(), 1.0f);
    ASSERT_TRUE(UnpackLatents(bytes, tokens, grid, GetParam(), back.data()).ok());
    EXPECT_EQ(back, z);
  }
}

TEST_P(LatentPackingTest, RefusesBytesThatAreNotExactlyTheCodes) {
  // A single lane cannot tell: a frame of two. One plane: behind each of several there is a cut that decodes.
  const int64_t tokens = HasScales(GetParam()) ? 2100 : 40;
  const LatentGrid grid{0.5f, {6, 10}, {0.9f, 0.9f}, 1};
  const std::vector<float> z = Noise(2 * tokens, 3.0f);
  const auto bytes = Pack(z, tokens, grid, GetParam());
  std::vector<float> back(z.size());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto part = absl::MakeConstSpan(bytes).subspan(0, size);
    const absl::Status status = UnpackLatents(part, tokens, grid, GetParam(), back.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  }
  auto longer = bytes;
  longer.push_back(0);
  const absl::Status status = UnpackLatents(longer, tokens, grid, GetParam(), back.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("want"));
  EXPECT_FALSE(UnpackLatents(bytes, tokens - 1, grid, GetParam(), back.data()).ok());
  EXPECT_FALSE(UnpackLatents(bytes, 2 * tokens, grid, GetParam(), back.data()).ok());
}

INSTANTIATE_TEST_SUITE_P(All, LatentPackingTest,
                         ::testing::Values(LatentPacking::kFixed, LatentPacking::kDeflate,
                                           LatentPacking::kRans, LatentPacking::kEmbedded));

TEST(LatentPacking, HasTheBytesOfTheDocument) {
  // FORMAT.md's example: two tokens, latents of 3 and 10 bits, step 0.5.
  const LatentGrid grid{0.5f, {3, 10}};
  const std::vector<float> z = {1.0f, -100.0f, -1.5f, 100.0f};
  // Codes 2, -3 in 3 bits: 010 and 101 -> 0b101010. Codes -200, 200 in 10 bits: 0x338, 0x0c8.
  EXPECT_THAT(Pack(z, 2, grid, LatentPacking::kFixed), ElementsAre(0x2a, 0x38, 0x23, 0x03));
  EXPECT_THAT(Pack(z, 2, {0.5f, {3, 10}, {0.5f, 0.99f}}, LatentPacking::kRans),
              ElementsAre(0x00, 0xfa, 0xf8, 0x3f, 0x2b));
}

// Of a scale in steps.
float DecayOf(double scale) { return static_cast<float>(std::exp(-0.5 / scale)); }

// Normal codes in nearly their entropy, though the tables are logistic ones; one token as a chunk of them.
TEST(LatentPacking, RansTakesTheEntropyForOneTokenToo) {
  constexpr int kRank = 200;
  for (const double deviation : {0.7, 2.0, 6.0, 60.0, 900.0}) {
    const int bits = static_cast<int>(std::ceil(std::log2(12 * deviation)));
    const LatentGrid grid{1.0f, std::vector<int>(kRank, bits),
                          std::vector<float>(kRank, DecayOf(0.57 * deviation))};
    double entropy = 0;
    for (int code = -100000; code < 100000; ++code) {
      const double p = 0.5 * (std::erf((code + 0.5) / deviation / std::sqrt(2.0)) -
                              std::erf((code - 0.5) / deviation / std::sqrt(2.0)));
      if (p > 0) entropy -= p * std::log2(p);
    }
    for (const int64_t tokens : {1, 300}) {
      double bytes = 0;
      const int rounds = tokens == 1 ? 100 : 1;
      for (int i = 0; i < rounds; ++i) {
        const auto packed =
            Pack(Noise(tokens * kRank, static_cast<float>(deviation)), tokens, grid, LatentPacking::kRans);
        bytes += static_cast<double>(packed.size()) / rounds;
      }
      const double ideal = entropy / 8 * static_cast<double>(tokens * kRank);
      EXPECT_LT(bytes, 1.025 * ideal + 2) << "deviation " << deviation << ", " << tokens << " tokens";
      EXPECT_GT(bytes, 0.97 * ideal);
    }
  }
}

TEST(LatentFrequencies, FallFromTheMiddleAndLeaveNoCodeOut) {
  for (int bits = 1; bits <= kMaxLatentBits; ++bits) {
    for (const float decay : {kMinDecay, 0.01f, 0.5f, 0.9f, 0.999f, kMaxDecay}) {
      const std::vector<uint16_t> frequencies = LatentFrequencies(bits, decay);
      ASSERT_TRUE(RansTable::Create(frequencies).ok());
      const int half = 1 << (std::min(bits, 8) - 1);
      for (int m = -half; m < half; ++m)
        ASSERT_GE(frequencies[static_cast<uint8_t>(m)], 1) << bits << " " << decay;
      for (int m = 1; m < half - 2; ++m) {
        // The largest give away what rounding the small ones up took.
        ASSERT_GE(frequencies[m] + (frequencies[m] + 15) / 16, frequencies[m + 1])
            << bits << " " << decay << " at " << m;
      }
    }
  }
  // FORMAT.md's arithmetic by other means.
  const std::vector<uint16_t> few = LatentFrequencies(2, 0.5f);
  EXPECT_THAT(std::vector<uint16_t>({few[254], few[255], few[0], few[1]}), ElementsAre(455, 910, 1366, 1365));
  const std::vector<uint16_t> wide = LatentFrequencies(10, 0.99f);
  EXPECT_THAT(std::vector<uint16_t>({wide[254], wide[255], wide[0], wide[1]}), ElementsAre(76, 76, 71, 75));
}

TEST(LatentPacking, EntropyCodingBeatsFixedWidthsOnPeakedCodes) {
  const std::vector<float> z = Noise(256 * 32, 1.0f);
  const LatentGrid grid{0.25f, std::vector<int>(32, 6)};
  EXPECT_LT(Pack(z, 256, grid, LatentPacking::kDeflate).size(),
            Pack(z, 256, grid, LatentPacking::kFixed).size() * 3 / 4);
}

}  // namespace
}  // namespace aludel
