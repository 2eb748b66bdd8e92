#include "runtime/kv/prefix_cache.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

constexpr int kBlockTokens = 4;

std::vector<int32_t> Tokens(int count, int first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  // A sequence of these tokens that has been computed and put into the cache.
  BlockTable Computed(const std::vector<int32_t>& tokens,
                      const Provenance& provenance = {.model_hash = "m"}) {
    BlockTable table;
    EXPECT_TRUE(table.Grow(*pool_, tokens.size()).ok());
    PrefixChain chain(provenance, kBlockTokens);
    cache_.Insert(chain.Extend(tokens), table.ids());
    return table;
  }
  BlockTable Found(const std::vector<int32_t>& tokens, const Provenance& provenance = {.model_hash = "m"}) {
    BlockTable table;
    PrefixChain chain(provenance, kBlockTokens);
    cache_.Attach(chain.Extend(tokens), 100, &table);
    return table;
  }

  std::unique_ptr<Device> device_ = OpenDevice({.threads = 1}).value();
  std::unique_ptr<BlockPool> pool_ =
      BlockPool::Create(
          device_.get(),
          {.layers = 1, .kv_heads = 1, .head_dim = 2, .block_tokens = kBlockTokens, .blocks = 6})
          .value();
  PrefixCache cache_{pool_.get()};
};

TEST_F(PrefixCacheTest, SharesTheFullBlocksOfACommonBeginning) {
  const BlockTable first = Computed(Tokens(11));  // two full blocks and a part
  std::vector<int32_t> other = Tokens(8);
  other.insert(other.end(), {90, 91, 92, 93});
  const BlockTable second = Found(other);
  EXPECT_THAT(second.ids(), ElementsAre(first.ids()[0], first.ids()[1]));
  EXPECT_TRUE(second.blocks()[0].shared());
  EXPECT_EQ(pool_->free_blocks(), 3);
}

TEST_F(PrefixCacheTest, FindsNothingWhereAnEarlierTokenDiffers) {
  const BlockTable first = Computed(Tokens(12));
  std::vector<int32_t> other = Tokens(12);
  other[0] = 99;
  EXPECT_TRUE(Found(other).ids().empty());
  // Nor the same tokens at another place.
  EXPECT_TRUE(Found(Tokens(8, 4)).ids().empty());
}

TEST_F(PrefixCacheTest, KeepsProvenancesApart) {
  const Provenance exact{.model_hash = "m"};
  const Provenance codes{"m", "aludel-p2", "hash", 0};
  const BlockTable lossy = Computed(Tokens(8), codes);
  EXPECT_TRUE(Found(Tokens(8), exact).ids().empty());
  EXPECT_TRUE(Found(Tokens(8), {"m", "aludel-p0", "hash", 0}).ids().empty());
  EXPECT_TRUE(Found(Tokens(8), {"m", "aludel-p2", "another", 0}).ids().empty());
  EXPECT_TRUE(Found(Tokens(8), {"m", "aludel-p2", "hash", 4}).ids().empty());
  EXPECT_TRUE(Found(Tokens(8), {"another", "aludel-p2", "hash", 0}).ids().empty());
  EXPECT_EQ(Found(Tokens(8), codes).ids().size(), 2u);
  const BlockTable own = Computed(Tokens(8), exact);
  EXPECT_THAT(Found(Tokens(8), exact).ids(), ElementsAre(own.ids()[0], own.ids()[1]));
}

TEST_F(PrefixCacheTest, NeverSharesAcrossSalts) {
  const Provenance alice{.model_hash = "m", .salt = "alice"};
  const BlockTable hers = Computed(Tokens(8), alice);
  EXPECT_TRUE(Found(Tokens(8)).ids().empty());
  EXPECT_TRUE(Found(Tokens(8), {.model_hash = "m", .salt = "bob"}).ids().empty());
  // Nor where the fields, read one after the other, are the same bytes.
  EXPECT_TRUE(Found(Tokens(8), {.model_hash = "ma", .salt = "lice"}).ids().empty());
  EXPECT_TRUE(Found(Tokens(8), {.model_hash = "m", .artifact_hash = "alice"}).ids().empty());
  EXPECT_THAT(Found(Tokens(8), alice).ids(), ElementsAre(hers.ids()[0], hers.ids()[1]));
}

TEST_F(PrefixCacheTest, SharesWhatComesBeforeAnotherModelTakesOver) {
  const auto turned = [](int64_t begin, const std::string& hash = "a") {
    return Provenance{.model_hash = "m", .turn_hash = hash, .turn_begin = begin};
  };
  const BlockTable own = Computed(Tokens(12));
  EXPECT_EQ(Found(Tokens(12), turned(5)).ids().size(), 1u);
  EXPECT_EQ(Found(Tokens(12), turned(8)).ids().size(), 2u);
  EXPECT_EQ(Found(Tokens(12), turned(0)).ids().size(), 0u);
  const BlockTable other = Computed(Tokens(12), turned(5));
  EXPECT_THAT(Found(Tokens(12)).ids(), ElementsAre(own.ids()[0], own.ids()[1], own.ids()[2]));
  EXPECT_THAT(Found(Tokens(12), turned(5)).ids(), ElementsAre(own.ids()[0], other.ids()[1], other.ids()[2]));
  // Another place in the same block, and another model.
  EXPECT_EQ(Found(Tokens(12), turned(6)).ids().size(), 1u);
  EXPECT_EQ(Found(Tokens(12), turned(5, "b")).ids().size(), 1u);
}

TEST_F(PrefixCacheTest, GivesIdleBlocksAwayOldestFirstAndEndsBeforeBeginnings) {
  Computed(Tokens(8));
  Computed(Tokens(8, 50));
  EXPECT_EQ(pool_->free_blocks(), 6);
  EXPECT_EQ(pool_->idle_blocks(), 4);
  Found(Tokens(8));  // used again: the other one is older now
  BlockTable greedy;
  ASSERT_TRUE(greedy.Grow(*pool_, 3 * kBlockTokens).ok());
  EXPECT_EQ(Found(Tokens(8, 50)).ids().size(), 1u);
  EXPECT_EQ(Found(Tokens(8)).ids().size(), 2u);
  ASSERT_TRUE(greedy.Grow(*pool_, 6 * kBlockTokens).ok());
  EXPECT_EQ(cache_.entries(), 0);
  EXPECT_TRUE(Found(Tokens(8)).ids().empty());
}

TEST_F(PrefixCacheTest, NeverGivesAwayWhatSomebodyHolds) {
  const BlockTable held = Computed(Tokens(8));
  BlockTable greedy;
  EXPECT_FALSE(greedy.Grow(*pool_, 5 * kBlockTokens).ok());
  ASSERT_TRUE(greedy.Grow(*pool_, 4 * kBlockTokens).ok());
  EXPECT_EQ(Found(Tokens(8)).ids().size(), 2u);
}

TEST_F(PrefixCacheTest, KeepsTheFirstOfTwoThatHoldTheSame) {
  const BlockTable first = Computed(Tokens(4));
  {
    const BlockTable second = Computed(Tokens(4));
    EXPECT_NE(second.ids()[0], first.ids()[0]);
  }
  EXPECT_EQ(pool_->idle_blocks(), 0);
  EXPECT_THAT(Found(Tokens(4)).ids(), ElementsAre(first.ids()[0]));
}

}  // namespace
}  // namespace aludel
