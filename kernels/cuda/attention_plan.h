#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cuda/attention_args.h"
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
};

// AttentionWork with its arrays still on the host.
struct AttentionPlan {
  QueryTiling tiling{};
  int64_t units = 0;
  int64_t tiles = 0;
  int64_t split_keys = std::numeric_limits<int64_t>::max() / 2;
  int most_queries = 0;  // of any tile
  bool splits_keys = false;
  std::vector<int64_t> first_unit;
  std::vector<int64_t> first_tile;
  std::vector<int32_t> splits;
};

// Rows that one decode tile holds of a sequence: those with no more are the decode kernel's.
inline int64_t DecodeRows(int group, int decode_queries) {
  return MakeQueryTiling(group, decode_queries).rows_per_tile;
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
  const int64_t share = (work * params.kv_heads + kernel.blocks - 1) / kernel.blocks;
  for (int64_t keys = round_up(std::max(kernel.least_keys, share));; keys *= 2) {
    plan.units = 0;
    plan.splits_keys = false;
    for (size_t s = 0; s < sequences.size(); ++s) {
      plan.first_unit[s] = plan.units;
      plan.splits[s] = static_cast<int32_t>(std::max<int64_t>(1, (longest[s] + keys - 1) / keys));
      plan.splits_keys = plan.splits_keys || plan.splits[s] > 1;
      if (mine(sequences[s])) plan.units += TileCount(plan.tiling, sequences[s].rows) * plan.splits[s];
    }
    plan.split_keys = keys;
    const int64_t floats = plan.units * params.kv_heads * kernel.queries * PartialStride(params.head_dim);
    if (!plan.splits_keys || floats <= kernel.partial_floats) return plan;
  }
}

}  // namespace aludel::cuda
