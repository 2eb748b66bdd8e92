#include "kernels/cuda/index.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace aludel::cuda {
namespace {

TEST(FindInterval, FindsTheOwnerOfEveryIndexPastEmptyIntervals) {
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{1}, {5, 1, 7}, {0, 3, 0, 0, 2, 0}, {2, 2, 2, 2, 2, 2, 2}}) {
    std::vector<int64_t> first;
    std::vector<int> owners;
    for (size_t i = 0; i < sizes.size(); ++i) {
      first.push_back(static_cast<int64_t>(owners.size()));
      owners.insert(owners.end(), sizes[i], static_cast<int>(i));
    }
    for (size_t index = 0; index < owners.size(); ++index) {
      EXPECT_EQ(FindInterval(first.data(), static_cast<int>(first.size()), index), owners[index]);
    }
  }
}

TEST(PageOffset, CountsElementsInLayoutOrder) {
  const int kv_heads = 3, block_tokens = 4, head_dim = 6;
  int64_t expected = 0;
  for (int block = 0; block < 5; ++block) {
    for (int head = 0; head < kv_heads; ++head) {
      for (int slot = 0; slot < block_tokens; ++slot, expected += head_dim) {
        EXPECT_EQ(PageOffset(block, kv_heads, head, block_tokens, slot, head_dim), expected);
      }
    }
  }
  EXPECT_EQ(PageOffset(2'000'000, 8, 7, 16, 15, 128), ((2'000'000ll * 8 + 7) * 16 + 15) * 128);
}

TEST(FirstVisible, IsTheCpuFormula) {
  for (const int64_t window : {0, 1, 2, 9, 70}) {
    for (int64_t position = 0; position < 200; ++position) {
      EXPECT_EQ(FirstVisible(position, window), window > 0 ? std::max<int64_t>(0, position - window + 1) : 0);
    }
  }
}

TEST(QueryTiling, CoversEveryRowAndHeadOnceWithinCapacity) {
  for (const int capacity : {4, 32}) {
    for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 16, 31, 32, 33, 40, 71}) {
      for (const int64_t rows : {1, 2, 3, 10, 31, 32, 33, 100}) {
        const QueryTiling tiling = MakeQueryTiling(group, capacity);
        ASSERT_GE(tiling.rows_per_tile, 1);
        std::set<std::pair<int64_t, int>> seen;
        for (int64_t t = 0; t < TileCount(tiling, rows); ++t) {
          const QueryTile tile = TileAt(tiling, rows, t);
          ASSERT_GE(tile.rows, 1);
          ASSERT_GE(tile.heads, 1);
          ASSERT_LE(tile.rows * tile.heads, capacity);
          for (int64_t row = tile.row_begin; row < tile.row_begin + tile.rows; ++row) {
            for (int head = tile.head_begin; head < tile.head_begin + tile.heads; ++head) {
              ASSERT_TRUE(seen.emplace(row, head).second) << "row " << row << " head " << head << " twice";
            }
          }
        }
        ASSERT_EQ(seen.size(), rows * group);
        ASSERT_EQ(seen.rbegin()->first, rows - 1);
        ASSERT_EQ(seen.rbegin()->second, group - 1);
      }
    }
  }
}

}  // namespace
}  // namespace aludel::cuda
