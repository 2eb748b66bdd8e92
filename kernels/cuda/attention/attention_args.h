#pragma once

#include <cstdint>

#include "kernels/cuda/index.h"
#include "kernels/tensor.h"

namespace aludel::cuda {

// PagedKv as the kernels read it.
struct KvPlanes {
  void* k;
  void* v;
  DType dtype;
  int block_tokens;
  int kv_heads;
  int head_dim;
};

// Layers whose rows and pages lie as far apart, from one to the next, as so many columns and bytes.
struct LayerRun {
  int layers;
  int64_t columns;
  int64_t page_bytes;
};

// How the work of one attention launch is cut: a sequence has TileCount(tiling, rows) tiles of queries, and
// the keys of each tile are split into `splits[s]` runs of `split_keys`, so that a few sequences with a long
// past fill the GPU (flash-decoding, Dao et al. 2023). A unit is a (tile, split) pair, splits innermost. A
// sequence that this launch leaves to another one has no tiles. Whatever depends on how long sequences are
// lies in device memory, so that one launch serves them while they grow; blocks for more units than there are
// have nothing to do.
struct AttentionWork {
  QueryTiling tiling;
  const int64_t* first_unit;  // [sequences + 1], running sums and their total
  const int64_t* first_tile;  // [sequences], running sums
  const int64_t* splits;      // [sequences], at least 1
  const int64_t* split_keys;  // one number, a multiple of every kernel's key tile
};

struct AttentionArgs {
  TensorView q;    // [rows, heads * head_dim]
  TensorView out;  // as q
  float scale;     // positive
  int64_t window;
  SequenceTable table;
  AttentionWork work;
  KvPlanes kv;
  // Results of splits, [units, kv_heads, queries of a tile, PartialStride], each sums [head_dim], their maximum and their
  // weight. Unused where every split count is 1.
  float* partial;
  // How many splits of each tile are there: [tiles, kv_heads], zeros before and behind every launch. The block that comes last
  // joins them. Null: a second kernel does.
  uint32_t* arrived;
};

ALUDEL_HOST_DEVICE constexpr int PartialStride(int head_dim) { return head_dim + 2; }

// The keys of one unit: positions [begin, end), walked in tiles from `tile_begin` on. Nothing where the split
// lies beyond what the tile's queries see.
struct KeyRun {
  int64_t tile_begin;
  int64_t begin;
  int64_t end;
};

// Key tiles start at multiples of `key_tile`, as the CPU's do, and splits at multiples of it from the first
// one that the tile's first row sees.
ALUDEL_HOST_DEVICE inline KeyRun KeysOf(const SequenceEntry& entry, const QueryTile& tile, int64_t window,
                                        int key_tile, int splits, int64_t split_keys, int split) {
  const int64_t first = FirstVisible(entry.position_begin + tile.row_begin, window);
  KeyRun run{first / key_tile * key_tile, first, entry.position_begin + tile.row_begin + tile.rows};
  if (splits == 1) return run;
  const int64_t begin = run.tile_begin + split * split_keys;
  const int64_t end = begin + split_keys;
  if (split > 0) run.begin = run.tile_begin = begin;
  if (end < run.end) run.end = end;
  return run;
}

}  // namespace aludel::cuda
