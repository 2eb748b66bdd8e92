#include "runtime/kv/block_pool.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

class BlockPoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = OpenDevice({.threads = 1}).value();
  std::unique_ptr<BlockPool> pool_ =
      BlockPool::Create(device_.get(),
                        {.layers = 2, .kv_heads = 2, .head_dim = 4, .block_tokens = 4, .blocks = 3})
          .value();
};

TEST_F(BlockPoolTest, ReturnsBlockWhenLastRefDies) {
  {
    BlockRef first = pool_->Allocate().value();
    {
      const BlockRef second = first;
      EXPECT_TRUE(first.shared());
      EXPECT_EQ(first.id(), second.id());
    }
    EXPECT_FALSE(first.shared());
    EXPECT_EQ(pool_->free_blocks(), 2);
  }
  EXPECT_EQ(pool_->free_blocks(), 3);
}

TEST_F(BlockPoolTest, CopiesASharedBlockBeforeItIsWritten) {
  BlockTable first, second;
  ASSERT_TRUE(first.Grow(*pool_, 6).ok());
  const auto fill = [this](BlockId block, char byte) {
    const size_t bytes = pool_->layout().plane_bytes() / pool_->layout().blocks;
    for (int layer = 0; layer < 2; ++layer) {
      memset(static_cast<char*>(pool_->Layer(layer).k) + block * bytes, byte + layer, bytes);
      memset(static_cast<char*>(pool_->Layer(layer).v) + block * bytes, byte + 4 + layer, bytes);
    }
  };
  fill(first.ids()[0], 10);
  fill(first.ids()[1], 20);
  for (const BlockRef& block : first.blocks()) second.Append(block);
  ASSERT_TRUE(second.MakeWritable(*pool_, 6, {}).ok());
  EXPECT_EQ(second.ids()[0], first.ids()[0]);
  EXPECT_NE(second.ids()[1], first.ids()[1]);
  EXPECT_EQ(pool_->free_blocks(), 0);
  const size_t bytes = pool_->layout().plane_bytes() / pool_->layout().blocks;
  for (int layer = 0; layer < 2; ++layer) {
    const PagedKv kv = pool_->Layer(layer);
    for (const void* plane : {kv.k, kv.v}) {
      EXPECT_EQ(memcmp(static_cast<const char*>(plane) + first.ids()[1] * bytes,
                       static_cast<const char*>(plane) + second.ids()[1] * bytes, bytes),
                0);
    }
  }
  // Nobody shares it any more, so the last one writes in place.
  const BlockId kept = first.ids()[1];
  ASSERT_TRUE(first.MakeWritable(*pool_, 6, {}).ok());
  EXPECT_EQ(first.ids()[1], kept);
  // A copy that finds no room changes nothing.
  EXPECT_EQ(first.MakeWritable(*pool_, 0, {}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(first.ids()[0], second.ids()[0]);
}

TEST_F(BlockPoolTest, FailsWhenEverythingIsInUse) {
  BlockTable table;
  ASSERT_TRUE(table.Grow(*pool_, 12).ok());
  EXPECT_EQ(pool_->Allocate().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(BlockPoolTest, ATableThatCannotGrowKeepsWhatItHadAndTakesNothing) {
  BlockTable table;
  ASSERT_TRUE(table.Grow(*pool_, 5).ok());
  EXPECT_EQ(table.ids().size(), 2u);
  EXPECT_FALSE(table.Grow(*pool_, 17).ok());
  EXPECT_EQ(table.ids().size(), 2u);
  EXPECT_EQ(pool_->free_blocks(), 1);
}

TEST_F(BlockPoolTest, GivesEveryLayerPlanesOfItsOwn) {
  const PagedKv first = pool_->Layer(0);
  const PagedKv second = pool_->Layer(1);
  const auto plane = static_cast<ptrdiff_t>(pool_->layout().plane_bytes());
  EXPECT_EQ(static_cast<char*>(first.v) - static_cast<char*>(first.k), plane);
  EXPECT_EQ(static_cast<char*>(second.k) - static_cast<char*>(first.k), 2 * plane);
  EXPECT_EQ(pool_->layout().bytes_per_token(), size_t{2} * 2 * 8 * 2);
}

TEST(KvLayout, OfFp8TakesHalfOfWhatBf16Takes) {
  KvLayout layout{.layers = 3, .kv_heads = 2, .head_dim = 8, .block_tokens = 4, .blocks = 5};
  const size_t token = layout.bytes_per_token(), plane = layout.plane_bytes(), total = layout.total_bytes();
  layout.dtype = DType::kFp8;
  EXPECT_EQ(2 * layout.bytes_per_token(), token);
  EXPECT_EQ(2 * layout.plane_bytes(), plane);
  EXPECT_EQ(2 * layout.total_bytes(), total);
  const PagedKv last = layout.Layer(nullptr, 2);
  EXPECT_EQ(static_cast<char*>(last.v) - static_cast<char*>(nullptr), 5 * static_cast<ptrdiff_t>(plane / 2));
  EXPECT_EQ(last.dtype, DType::kFp8);
}

TEST_F(BlockPoolTest, NamesTheArithmeticWhenItDoesNotFit) {
  const auto pool = BlockPool::Create(
      device_.get(),
      {.layers = 1 << 10, .kv_heads = 64, .head_dim = 256, .block_tokens = 1 << 10, .blocks = 1 << 20});
  EXPECT_THAT(std::string(pool.status().message()), HasSubstr("1048576 blocks x 1024 tokens"));
}

}  // namespace
}  // namespace aludel
