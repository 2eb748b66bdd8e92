#include "kernels/cuda/attention/attention_plan.h"

#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace aludel::cuda {
namespace {

constexpr int64_t kAnyRows = std::numeric_limits<int64_t>::max();
constexpr int64_t kPlenty = int64_t{1} << 40;

// (row of the batch, head of the group) -> keys seen, over all units of a plan.
using Seen = std::map<std::pair<int64_t, int>, std::set<int64_t>>;

void Collect(const AttentionPlan& plan, const std::vector<SequenceRows>& sequences, int64_t window,
             int key_tile, Seen* seen) {
  ASSERT_LE(plan.first_unit.back(), plan.units);
  for (int64_t unit = 0; unit < plan.first_unit.back(); ++unit) {
    const int s = FindInterval(plan.first_unit.data(), static_cast<int>(sequences.size()), unit);
    const SequenceEntry entry{sequences[s].row_begin, sequences[s].rows, sequences[s].position_begin, 0};
    const int64_t local = unit - plan.first_unit[s];
    const QueryTile tile = TileAt(plan.tiling, entry.rows, local / plan.splits[s]);
    ASSERT_LT(tile.row_begin, entry.rows);
    const KeyRun run = KeysOf(entry, tile, window, key_tile, plan.splits[s], plan.split_keys,
                              static_cast<int>(local % plan.splits[s]));
    if (run.begin >= run.end) continue;
    ASSERT_EQ(run.tile_begin % key_tile, 0);
    ASSERT_LE(run.tile_begin, run.begin);
    for (int64_t key = run.begin; key < run.end; ++key) {
      for (int64_t r = tile.row_begin; r < tile.row_begin + tile.rows; ++r) {
        for (int h = tile.head_begin; h < tile.head_begin + tile.heads; ++h) {
          std::set<int64_t>& keys = (*seen)[{entry.row_begin + r, h}];
          ASSERT_TRUE(keys.insert(key).second) << "key " << key << " twice";
        }
      }
    }
  }
}

TEST(AttentionPlan, EveryRowAndHeadSeesEachOfItsKeysOnceWhateverTheSplits) {
  const std::vector<SequenceRows> sequences = {{0, 1, 700, {}}, {1, 0, 5, {}},   {1, 20, 300, {}},
                                               {21, 1, 0, {}},  {22, 3, 64, {}}, {25, 150, 0, {}}};
  for (const int group : {1, 4, 7, 40}) {
    for (const int64_t window : {0, 1, 100}) {
      for (const int64_t blocks : {1, 40, 5000}) {
        const AttentionParams params{2 * group, 2, 64, 1.0f, window};
        const int64_t decode_rows = DecodeRows(group, 16);
        Seen seen;
        Collect(PlanAttention(sequences, params, {16, 64, blocks, 128, kPlenty}, 1, decode_rows), sequences,
                window, 64, &seen);
        for (const auto& [query, keys] : seen) ASSERT_TRUE(query.first == 0 || query.first >= 21);
        Collect(PlanAttention(sequences, params, {128, 64, blocks, 256, kPlenty}, decode_rows + 1, kAnyRows),
                sequences, window, 64, &seen);
        ASSERT_EQ(seen.size(), 175 * group);
        for (const SequenceRows& s : sequences) {
          for (int64_t r = 0; r < s.rows; ++r) {
            const int64_t position = s.position_begin + r;
            for (int h = 0; h < group; ++h) {
              const std::set<int64_t>& keys = seen[{s.row_begin + r, h}];
              ASSERT_LE(*keys.begin(), FirstVisible(position, window));
              ASSERT_GE(*keys.rbegin(), position);
              ASSERT_EQ(*keys.rbegin() - *keys.begin() + 1, keys.size());
            }
          }
        }
      }
    }
  }
}

TEST(AttentionPlan, OneSequenceFillsTheGpuAndAFullGpuSplitsNothing) {
  const AttentionParams params{32, 8, 128, 1.0f, 0};
  const AttentionKernel decode{16, 64, 396, 128, kPlenty};
  const std::vector<SequenceRows> one = {{0, 1, 8191, {}}};
  const AttentionPlan split = PlanAttention(one, params, decode, 1, 4);
  EXPECT_TRUE(split.splits_keys);
  EXPECT_LE(split.units * params.kv_heads, decode.blocks);
  EXPECT_GE(split.units * params.kv_heads, decode.blocks * 3 / 4);
  EXPECT_EQ(split.most_queries, 4);
  std::vector<SequenceRows> many;
  for (int64_t i = 0; i < 50; ++i) many.push_back({i, 1, 8191, {}});
  const AttentionPlan full = PlanAttention(many, params, decode, 1, 4);
  EXPECT_FALSE(full.splits_keys);
  EXPECT_EQ(full.units, 50);
  EXPECT_FALSE(
      PlanAttention(absl::MakeConstSpan(one), params, {16, 64, 396, 10'000, kPlenty}, 1, 4).splits_keys);
}

std::vector<SequenceRows> Decoding(const std::vector<int64_t>& positions) {
  std::vector<SequenceRows> sequences;
  for (const int64_t position : positions) {
    sequences.push_back({static_cast<int64_t>(sequences.size()), 1, position, {}});
  }
  return sequences;
}

// What repeated work asks for: nothing that is launched follows the positions, and the work is cut as ever.
TEST(AttentionPlan, ForAllPositionsLaunchesTheSameAndCutsAsForThese) {
  std::mt19937 random(5);
  for (const int group : {4, 34}) {
    for (const int64_t window : {0, 1, 100, 600}) {
      for (const int64_t blocks : {1, 40, 396, 5000}) {
        for (const int64_t end : {64, 1024, 20'000}) {
          for (const size_t count : {1, 3, 20}) {
            const AttentionParams params{2 * group, 2, 64, 1.0f, window};
            const AttentionKernel eager{16, 64, blocks, 128, kPlenty};
            AttentionKernel repeated = eager;
            repeated.positions = end;
            const AttentionPlan first =
                PlanAttention(Decoding(std::vector<int64_t>(count, 0)), params, repeated, 1, 4);
            EXPECT_EQ(first.splits_keys, first.units > first.tiles);
            for (int round = 0; round < 30; ++round) {
              std::vector<int64_t> positions(count, end - 1);
              for (int64_t& position : positions) {
                if (round % 3 > 0) position = static_cast<int64_t>(random() % end);
                if (round % 3 > 1) position %= 70;
              }
              if (round % 2 == 1) positions.back() = end - 1;
              const std::vector<SequenceRows> sequences = Decoding(positions);
              const AttentionPlan plan = PlanAttention(sequences, params, repeated, 1, 4);
              ASSERT_EQ(plan.units, first.units);
              ASSERT_EQ(plan.tiles, first.tiles);
              ASSERT_EQ(plan.most_queries, first.most_queries);
              ASSERT_EQ(plan.splits_keys, first.splits_keys);
              const AttentionPlan own = PlanAttention(sequences, params, eager, 1, 4);
              ASSERT_LE(own.units, plan.units);
              ASSERT_TRUE(plan.splits_keys || !own.splits_keys);
              ASSERT_EQ(plan.first_unit, own.first_unit);
              ASSERT_EQ(plan.first_tile, own.first_tile);
              ASSERT_EQ(plan.splits, own.splits);
              ASSERT_EQ(plan.split_keys, own.split_keys);
            }
          }
        }
      }
    }
  }
}

// Whatever it was promised.
TEST(AttentionPlan, ForAllPositionsCoversBatchesThatAreNoneOfThose) {
  const std::vector<SequenceRows> sequences = {{0, 1, 5000, {}}, {1, 40, 300, {}}, {41, 1, 0, {}}};
  const AttentionParams params{8, 2, 64, 1.0f, 0};
  const AttentionKernel kernel{16, 64, 400, 128, kPlenty, /*positions=*/200};
  const AttentionPlan plan = PlanAttention(sequences, params, kernel, 1, kAnyRows);
  EXPECT_EQ(plan.units, MostUnits(plan.tiles, 200, params, kernel));
  Seen seen;
  Collect(plan, sequences, 0, 64, &seen);
  EXPECT_EQ(seen.size(), 42 * 4);
  EXPECT_EQ((seen[{0, 0}].size()), 5001);
}

TEST(AttentionPlan, SplitsNeverNeedMoreRoomThanThereIs) {
  const AttentionParams params{32, 8, 128, 1.0f, 0};
  const std::vector<SequenceRows> one = {{0, 1, 100'000, {}}};
  for (const int64_t room : {0, 100'000, 1'000'000, 8'000'000}) {
    const AttentionPlan plan = PlanAttention(one, params, {16, 64, 396, 128, room}, 1, 4);
    const int64_t floats = plan.units * params.kv_heads * 16 * PartialStride(params.head_dim);
    EXPECT_TRUE(!plan.splits_keys || floats <= room) << room;
    EXPECT_EQ(plan.splits_keys, room >= 100'000);
  }
}

}  // namespace
}  // namespace aludel::cuda
