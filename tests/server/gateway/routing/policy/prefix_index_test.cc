#include "server/gateway/routing/policy/prefix_index.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

// Blocks of 64 tokens, each named by a number that stands for all before it, too.
PrefixKeys Keys(std::vector<uint64_t> blocks) {
  PrefixKeys keys{.keys = std::move(blocks)};
  for (size_t i = 0; i < keys.size(); ++i) keys.ends.push_back(static_cast<int64_t>(64 * (i + 1)));
  keys.tokens = static_cast<int64_t>(64 * keys.size());
  return keys;
}

std::vector<int64_t> Match(const PrefixIndex& index, const PrefixKeys& keys) {
  std::vector<int64_t> tokens;
  index.Match(keys, &tokens);
  return tokens;
}

TEST(PrefixIndex, FindsTheLongestBeginningOfEachServer) {
  PrefixIndex index;
  for (size_t slot = 0; slot < 3; ++slot) index.Reset(slot, 10'000);
  index.Insert(0, Keys({1, 2, 3}), 3);
  index.Insert(1, Keys({1, 2, 9}), 2);
  EXPECT_THAT(Match(index, Keys({1, 2, 3, 4})), ElementsAre(192, 128, 0));
  EXPECT_THAT(Match(index, Keys({7})), ElementsAre(0, 0, 0));
}

TEST(PrefixIndex, ForgetsWhatWasUsedLongestAgoFromItsEnd) {
  PrefixIndex index;
  index.Reset(0, 4 * 64);
  index.Insert(0, Keys({1, 2, 3}), 3);
  index.Insert(0, Keys({8, 9}), 2);
  EXPECT_THAT(Match(index, Keys({1, 2, 3})), ElementsAre(128));
  index.Insert(0, Keys({1, 2}), 2);  // used again
  index.Insert(0, Keys({5}), 1);
  EXPECT_THAT(Match(index, Keys({1, 2})), ElementsAre(128));
  EXPECT_THAT(Match(index, Keys({8, 9})), ElementsAre(64));
  EXPECT_EQ(index.keys(), 4u);
}

TEST(PrefixIndex, ResetForgetsOneServerAlone) {
  PrefixIndex index;
  index.Reset(0, 1000);
  index.Reset(1, 1000);
  index.Insert(0, Keys({1, 2}), 2);
  index.Insert(1, Keys({1}), 1);
  index.Reset(0, 1000);
  EXPECT_THAT(Match(index, Keys({1, 2})), ElementsAre(0, 64));
  EXPECT_EQ(index.keys(), 1u);
}

TEST(PrefixIndex, HoldsMoreServersThanAWordHasBits) {
  PrefixIndex index;
  for (size_t slot = 0; slot < 200; ++slot) index.Reset(slot, 1000);
  index.Insert(3, Keys({1}), 1);
  index.Insert(199, Keys({1, 2}), 2);
  const std::vector<int64_t> tokens = Match(index, Keys({1, 2}));
  EXPECT_EQ(tokens[3], 64);
  EXPECT_EQ(tokens[199], 128);
  EXPECT_EQ(tokens[64], 0);
}

// Against one cache that is asked by itself.
TEST(PrefixIndex, AgreesWithEachServersOwnCache) {
  std::mt19937_64 random(7);
  PrefixIndex index;
  std::vector<PrefixLru> caches(5, PrefixLru(2000));
  for (size_t slot = 0; slot < 5; ++slot) index.Reset(slot, 2000);
  const auto prompt = [&random] {
    std::vector<uint64_t> blocks;
    uint64_t hash = random() % 6;
    for (size_t i = 0; i < 1 + random() % 12; ++i) blocks.push_back(hash = MixBits(hash + random() % 2));
    return Keys(blocks);
  };
  for (int i = 0; i < 5000; ++i) {
    const PrefixKeys used = prompt();
    const size_t slot = random() % 5;
    std::vector<uint64_t> added, evicted;
    caches[slot].Touch(used, used.size(), &added, &evicted);
    index.Insert(slot, used, used.size());
    EXPECT_LE(caches[slot].tokens(), 2000);
    if (random() % 100 == 0) {
      const size_t fresh = random() % 5;
      caches[fresh] = PrefixLru(2000);
      index.Reset(fresh, 2000);
    }
    const PrefixKeys asked = prompt();
    const std::vector<int64_t> tokens = Match(index, asked);
    for (size_t s = 0; s < 5; ++s) ASSERT_EQ(tokens[s], caches[s].Match(asked));
  }
  for (size_t slot = 0; slot < 5; ++slot) index.Reset(slot, 2000);
  EXPECT_EQ(index.keys(), 0u);
}

}  // namespace
}  // namespace aludel
