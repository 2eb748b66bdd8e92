#include "kernels/cuda/index.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/gemm/batch_index.h"

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

// Every step is one block's, runs are as long as each other but for one step, and no two pieces share a place.
TEST(BatchCut, DealsAllStepsOut) {
  for (const auto& [tiles, steps] : {std::pair{1, 1}, {1, 17}, {3, 9}, {32, 64}, {17, 4}, {5, 1}}) {
    for (const int blocks : {1, 2, 3, 7, 16, tiles * steps}) {
      if (blocks > tiles * steps) continue;
      const BatchCut cut{tiles, steps, blocks};
      EXPECT_EQ(cut.First(0), 0);
      EXPECT_EQ(cut.First(blocks), tiles * steps);
      std::set<std::pair<int, int>> pieces;  // block and tile
      for (int block = 0; block < blocks; ++block) {
        const int run = cut.First(block + 1) - cut.First(block);
        EXPECT_GE(run, tiles * steps / blocks);
        EXPECT_LE(run, (tiles * steps + blocks - 1) / blocks);
        for (int step = cut.First(block); step < cut.First(block + 1); ++step) {
          ASSERT_EQ(cut.BlockOf(step), block) << tiles << " " << steps << " " << blocks << " " << step;
          pieces.emplace(block, step / steps);
        }
      }
      std::set<int> places;
      for (const auto& [block, tile] : pieces) {
        const bool whole = cut.First(block) <= tile * steps && cut.First(block + 1) >= (tile + 1) * steps;
        if (whole) continue;
        const int place = cut.PieceOf(block, tile);
        EXPECT_TRUE(place >= 0 && place < blocks * kBatchPieces && places.insert(place).second);
      }
    }
  }
}

TEST(BatchCut, IsOfTheMatrixAndTheGpu) {
  constexpr size_t kRoom = size_t{32} << 20;
  const auto cut = [](int64_t out, int64_t in) { return CutBatch(out, in, 132, kRoom); };
  // An 8B model's: output of attention, keys with values, gate with up, down; and a demo's.
  EXPECT_EQ(cut(4096, 4096).blocks, 128);
  EXPECT_EQ(cut(2048, 4096).blocks, 64);
  EXPECT_EQ(cut(28672, 4096).blocks, 264);
  EXPECT_EQ(cut(4096, 14336).blocks, 264);
  EXPECT_EQ(cut(31, 8).blocks, 1);
  EXPECT_EQ(cut(129, 4100).tiles, 2);
  EXPECT_EQ(cut(129, 4100).steps, 65);
  EXPECT_LE(264 * kBatchPieces * kBatchPieceBytes, kRoom);
  EXPECT_EQ(CutBatch(28672, 4096, 132, 10 * kBatchPieces * kBatchPieceBytes).blocks, 10);
}

// A bank row of shared memory has 128 bytes; eight lanes of 16 each are served at a time.
TEST(BatchChunkAt, SpreadsWhatEightLanesReadAtATime) {
  std::set<int> all;
  for (int row = 0; row < 16; ++row) {
    for (int chunk = 0; chunk < kBatchChunks; ++chunk) all.insert(BatchChunkAt(row, chunk));
  }
  EXPECT_EQ(all.size(), 16 * kBatchChunks);
  EXPECT_EQ(*all.rbegin(), 16 * kBatchRowBytes - 16);
  for (int row = 0; row < 16; row += 2) {
    for (int first = 0; first < kBatchChunks; first += 4) {
      std::set<int> banks;
      for (int lane = 0; lane < 8; ++lane) {
        banks.insert(BatchChunkAt(row + lane / 4, first + lane % 4) % 128);
      }
      EXPECT_EQ(banks.size(), 8);
    }
  }
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
