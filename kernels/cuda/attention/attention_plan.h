#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cuda/attention/attention_args.h"
#include "kernels/ops.h"

// The host's half of an attention launch: which sequences it serves and how their work is cut.
namespace aludel::cuda {

// One kernel and the GPU it shall fill.
struct AttentionKernel {
  int queries = 0;             // of a tile
  int key_tile = 0;            // splits begin at multiples of it
  int64_t blocks = 0;          // that run at the same time on the whole GPU
  int64_t least_keys = 0;      // a split of fewer costs more to join than it saves
  int64_t partial_floats = 0;  // room for the results of splits
  // Above 0: launches are the same for all batches of as many tiles whose sequences end there or before.
  int64_t positions = 0;
};

// AttentionWork with its arrays still on the host.
struct AttentionPlan {
  QueryTiling tiling{};
  int64_t units = 0;  // to launch, at least as many as there are
  int64_t tiles = 0;
  int64_t split_keys = std::numeric_limits<int64_t>::max() / 2;
  int most_queries = 0;      // of any tile
  bool splits_keys = false;  // perhaps: results of splits are to be joined
  std::vector<int64_t> first_unit;
  std::vector<int64_t> first_tile;
  std::vector<int64_t> splits;
};

// Rows that one decode tile holds of a sequence: those with no more are the decode kernel's.
inline int64_t DecodeRows(int group, int decode_queries) {
  return MakeQueryTiling(group, decode_queries).rows_per_tile;
}

// The most units that PlanAttention makes of `tiles` tiles, each of one row, in sequences that end at
// `positions` or before; more are not made of others either. Each tile has one unit, and those beyond stand
// for least_keys keys each, and for such a share of all keys that each block has one.
inline int64_t MostUnits(int64_t tiles, int64_t positions, const AttentionParams& params,
                         const AttentionKernel& kernel) {
  const int64_t most_keys =
      params.window > 0 ? std::min(positions, params.window + kernel.key_tile - 1) : positions;
  const int64_t most_splits = std::max<int64_t>(1, (most_keys + kernel.least_keys - 1) / kernel.least_keys);
  return std::min(tiles * most_splits, tiles + kernel.blocks / params.kv_heads);
}

// The work of `kernel` over the sequences of at least `min_rows` and at most `max_rows` rows. Keys are split
// where there would be fewer blocks than run at once, into runs as long as give each block one; longer ones
// where their results do not fit. Takes time in proportion to the blocks that a GPU runs at once, at most.
inline AttentionPlan PlanAttention(absl::Span<const SequenceRows> sequences, const AttentionParams& params,
                                   const AttentionKernel& kernel, int64_t min_rows, int64_t max_rows) {
  AttentionPlan plan;
  const int group = params.heads / params.kv_heads;
  plan.tiling = MakeQueryTiling(group, kernel.queries);
  const auto mine = [&](const SequenceRows& s) { return s.rows >= min_rows && s.rows <= max_rows; };
  for (const SequenceRows& sequence : sequences) {
    plan.first_tile.push_back(plan.tiles);
    if (!mine(sequence)) continue;
    plan.tiles += TileCount(plan.tiling, sequence.rows);
    const int64_t rows = std::min<int64_t>(plan.tiling.rows_per_tile, sequence.rows);
    plan.most_queries = std::max(plan.most_queries, static_cast<int>(rows) * plan.tiling.chunk_heads);
  }
  plan.splits.assign(sequences.size(), 1);
  plan.first_unit = plan.first_tile;
  plan.first_unit.push_back(plan.tiles);
  plan.units = plan.tiles;
  if (plan.tiles == 0 || plan.tiles * params.kv_heads >= kernel.blocks) return plan;

  // Keys of every tile, and the most that a tile of each sequence has.
  int64_t work = 0;
  std::vector<int64_t> longest(sequences.size(), 0);
  for (size_t s = 0; s < sequences.size(); ++s) {
    if (!mine(sequences[s])) continue;
    const SequenceEntry entry{sequences[s].row_begin, sequences[s].rows, sequences[s].position_begin, 0};
    for (int64_t t = 0; t < TileCount(plan.tiling, entry.rows); ++t) {
      const KeyRun run = KeysOf(entry, TileAt(plan.tiling, entry.rows, t), params.window, kernel.key_tile,
                                /*splits=*/1, /*split_keys=*/0, /*split=*/0);
      work += run.end - run.tile_begin;
      longest[s] = std::max(longest[s], run.end - run.tile_begin);
    }
  }
  const auto round_up = [&](int64_t keys) {
    return (keys + kernel.key_tile - 1) / kernel.key_tile * kernel.key_tile;
  };
  const bool repeated = kernel.positions > 0;
  const int64_t most_units = repeated ? MostUnits(plan.tiles, kernel.positions, params, kernel)
                                      : std::numeric_limits<int64_t>::max();
  const int64_t share = (work * params.kv_heads + kernel.blocks - 1) / kernel.blocks;
  for (int64_t keys = round_up(std::max(kernel.least_keys, share));; keys *= 2) {
    plan.units = 0;
    plan.splits_keys = false;
    for (size_t s = 0; s < sequences.size(); ++s) {
      plan.first_unit[s] = plan.units;
      plan.splits[s] = std::max<int64_t>(1, (longest[s] + keys - 1) / keys);
      plan.splits_keys = plan.splits_keys || plan.splits[s] > 1;
      if (mine(sequences[s])) plan.units += TileCount(plan.tiling, sequences[s].rows) * plan.splits[s];
    }
    plan.first_unit.back() = plan.units;
    plan.split_keys = keys;
    const int64_t floats = plan.units * params.kv_heads * kernel.queries * PartialStride(params.head_dim);
    if (!plan.splits_keys || (floats <= kernel.partial_floats && plan.units <= most_units)) break;
  }
  if (repeated) {
    plan.units = most_units;
    plan.splits_keys = most_units > plan.tiles;
  }
  return plan;
}

}  // namespace aludel::cuda
