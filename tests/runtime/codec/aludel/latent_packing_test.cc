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
  std::vector<uint8_t> bytes(MaxPackedBytes(grid.bits, packing, tokens));
  bytes.resize(PackLatents(z.data(), tokens, grid, packing, absl::MakeSpan(bytes)));
  return bytes;
}

class LatentPackingTest : public ::testing::TestWithParam<LatentPacking> {};

TEST_P(LatentPackingTest, LosesHalfAStepAtMostInsideTheRange) {
  for (const int64_t tokens : {1, 3, 8, 257, 5000}) {
    const LatentGrid grid{0.125f, {2, 3, 5, 8, 9, 13, 16}};
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
  const LatentGrid grid{1.0f, {4}};
  std::vector<float> back(4);
  ASSERT_TRUE(UnpackLatents(Pack(z, 4, grid, GetParam()), 4, grid, GetParam(), back.data()).ok());
  EXPECT_THAT(back, ElementsAre(7.0f, -8.0f, 0.0f, 7.0f));
}

TEST_P(LatentPackingTest, RefusesBytesThatAreNotExactlyTheCodes) {
  const LatentGrid grid{0.5f, {6, 10}};
  const std::vector<float> z = Noise(2 * 40, 3.0f);
  const auto bytes = Pack(z, 40, grid, GetParam());
  std::vector<float> back(z.size());
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto part = absl::MakeConstSpan(bytes).subspan(0, size);
    EXPECT_EQ(UnpackLatents(part, 40, grid, GetParam(), back.data()).code(), absl::StatusCode::kDataLoss);
  }
  auto longer = bytes;
  longer.push_back(0);
  const absl::Status status = UnpackLatents(longer, 40, grid, GetParam(), back.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("want"));
  EXPECT_FALSE(UnpackLatents(bytes, 39, grid, GetParam(), back.data()).ok());
  EXPECT_FALSE(UnpackLatents(bytes, 80, grid, GetParam(), back.data()).ok());
}

INSTANTIATE_TEST_SUITE_P(Both, LatentPackingTest,
                         ::testing::Values(LatentPacking::kFixed, LatentPacking::kDeflate));

TEST(LatentPacking, HasTheBytesOfTheDocument) {
  // FORMAT.md's example: two tokens, latents of 3 and 10 bits, step 0.5.
  const LatentGrid grid{0.5f, {3, 10}};
  const std::vector<float> z = {1.0f, -100.0f, -1.5f, 100.0f};
  // Codes 2, -3 in 3 bits: 010 and 101 -> 0b101010. Codes -200, 200 in 10 bits: 0x338, 0x0c8.
  EXPECT_THAT(Pack(z, 2, grid, LatentPacking::kFixed), ElementsAre(0x2a, 0x38, 0x23, 0x03));
}

TEST(LatentPacking, EntropyCodingBeatsFixedWidthsOnPeakedCodes) {
  const std::vector<float> z = Noise(256 * 32, 1.0f);
  const LatentGrid grid{0.25f, std::vector<int>(32, 6)};
  EXPECT_LT(Pack(z, 256, grid, LatentPacking::kDeflate).size(),
            Pack(z, 256, grid, LatentPacking::kFixed).size() * 3 / 4);
}

}  // namespace
}  // namespace aludel
