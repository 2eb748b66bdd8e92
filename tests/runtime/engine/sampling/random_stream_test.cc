#include "runtime/engine/sampling/random_stream.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

// Known answers of the authors' own implementation (Random123, kat_vectors).
TEST(RandomStream, IsPhiloxAsPublished) {
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(RandomStream, IsUniformAndDependsOnSeedStreamAndPositionAlone) {
  const RandomStream random(7, 0);
  double sum = 0, squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double value = random.Uniform(i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 0.005);
  EXPECT_EQ(random.Uniform(5), RandomStream(7, 0).Uniform(5));
  EXPECT_NE(random.Uniform(5), random.Uniform(6));
  EXPECT_NE(random.Uniform(5), RandomStream(8, 0).Uniform(5));
  EXPECT_NE(random.Uniform(5), RandomStream(7, 1).Uniform(5));
  EXPECT_NE(random.Uniform(0), random.Uniform(uint64_t{1} << 32));
}

}  // namespace
}  // namespace aludel
