#include "server/rpc/slow_start.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

using Ages = std::vector<std::optional<double>>;

TEST(SlowStart, TheShareGrowsWithTheAge) {
  EXPECT_EQ(SlowStartWeight(0, 30), kLeastWeight);
  EXPECT_EQ(SlowStartWeight(1, 30), kLeastWeight);
  EXPECT_EQ(SlowStartWeight(15, 30), 0.5);
  EXPECT_EQ(SlowStartWeight(30, 30), 1);
  EXPECT_EQ(SlowStartWeight(3000, 30), 1);
  EXPECT_EQ(SlowStartWeight(0, 0), 1) << "slow start is off";
}

TEST(SlowStart, WeightsAreThoseOfTheOldestAndOfWhatStartedWithIt) {
  EXPECT_THAT(SlowStartWeights(Ages{}, 30), ElementsAre());
  EXPECT_THAT(SlowStartWeights(Ages{1.0}, 30), ElementsAre(1)) << "there is no other";
  EXPECT_THAT(SlowStartWeights(Ages{0.1, 2.0, 4.9}, 30), ElementsAre(1, 1, 1)) << "all are new";
  EXPECT_THAT(SlowStartWeights(Ages{500, 6}, 30), ElementsAre(1, DoubleNear(0.2, 1e-9)));
  EXPECT_THAT(SlowStartWeights(Ages{500, 26}, 30), ElementsAre(1, DoubleNear(26 / 30.0, 1e-9)));
  EXPECT_THAT(SlowStartWeights(Ages{500, 30}, 30), ElementsAre(1, 1));
  EXPECT_THAT(SlowStartWeights(Ages{12, 6}, 30), ElementsAre(1, DoubleNear(0.5, 1e-9))) << "of the oldest's";
  EXPECT_THAT(SlowStartWeights(Ages{std::nullopt, 6}, 30), ElementsAre(1, DoubleNear(0.2, 1e-9)))
      << "one that does not say is old";
  EXPECT_THAT(SlowStartWeights(Ages{500, 0}, 0), ElementsAre(1, 1)) << "slow start is off";
}

TEST(SlowStart, AServerTakesItsWeightOfTheKeysAndKeepsThem) {
  constexpr uint64_t kServer = 77;
  int taken = 0;
  for (uint64_t key = 0; key < 10'000; ++key) {
    taken += TakesKey(0.3, key, kServer) ? 1 : 0;
    EXPECT_TRUE(!TakesKey(0.3, key, kServer) || TakesKey(0.4, key, kServer)) << key;
    EXPECT_TRUE(TakesKey(1, key, kServer)) << key;
  }
  EXPECT_NEAR(taken, 3000, 150);
}

}  // namespace
}  // namespace aludel
