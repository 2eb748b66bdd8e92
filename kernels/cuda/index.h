#pragma once

#include <cstdint>

#include "kernels/host_device.h"

// Index arithmetic of the CUDA kernels, callable on the host so that tests can hold it against the CPU's
// loops. Everything that grows with pool or batch is 64 bits wide.
namespace aludel::cuda {

// SequenceRows as the kernels read it: blocks of all sequences lie end to end, this one's from `block_begin`.
struct SequenceEntry {
  int64_t row_begin;
  int64_t rows;
  int64_t position_begin;
  int64_t block_begin;
};

// A batch's sequences in device memory. Token i of the batch's tokens counts through the sequences in order.
struct SequenceTable {
  const int64_t* first_token;    // [count], of each sequence, ascending from 0
  const SequenceEntry* entries;  // [count]
  const int32_t* blocks;         // [sum of the block lists]
  int count;
  int64_t tokens;
};

// The last i with first[i] <= index: where `first` holds running sums from 0, the interval that holds index,
// also past empty ones. count >= 1.
ALUDEL_HOST_DEVICE inline int FindInterval(const int64_t* first, int count, int64_t index) {
  int low = 0;
  int high = count;
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (first[middle] <= index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// First element of (block, head, slot) in a plane [blocks, kv_heads, block_tokens, head_dim].
ALUDEL_HOST_DEVICE inline int64_t PageOffset(int32_t block, int kv_heads, int head, int block_tokens,
                                             int slot, int head_dim) {
  return ((static_cast<int64_t>(block) * kv_heads + head) * block_tokens + slot) * head_dim;
}

// The first position that a token at `position` attends to.
ALUDEL_HOST_DEVICE inline int64_t FirstVisible(int64_t position, int64_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

// How the (row, head of a group) pairs of one sequence and one kv head are cut into tiles of at most
// `capacity` queries. Groups that fit share a tile with as many rows as fit; larger ones are cut into chunks
// of heads, a row each.
struct QueryTiling {
  int group;          // query heads per kv head
  int chunk_heads;    // heads per tile, the last chunk may have fewer
  int chunks;         // tiles per run of rows
  int rows_per_tile;  // >= 1
};

struct QueryTile {
  int64_t row_begin;  // of the sequence's rows
  int rows;
  int head_begin;  // of the group's heads
  int heads;
};

ALUDEL_HOST_DEVICE inline QueryTiling MakeQueryTiling(int group, int capacity) {
  const int chunk_heads = group < capacity ? group : capacity;
  return {group, chunk_heads, (group + chunk_heads - 1) / chunk_heads, capacity / chunk_heads};
}

ALUDEL_HOST_DEVICE inline int64_t TileCount(const QueryTiling& tiling, int64_t rows) {
  return (rows + tiling.rows_per_tile - 1) / tiling.rows_per_tile * tiling.chunks;
}

// Tile `index` of [0, TileCount(tiling, rows)).
ALUDEL_HOST_DEVICE inline QueryTile TileAt(const QueryTiling& tiling, int64_t rows, int64_t index) {
  QueryTile tile;
  tile.row_begin = index / tiling.chunks * tiling.rows_per_tile;
  const int64_t left = rows - tile.row_begin;
  tile.rows = left < tiling.rows_per_tile ? static_cast<int>(left) : tiling.rows_per_tile;
  tile.head_begin = static_cast<int>(index % tiling.chunks) * tiling.chunk_heads;
  const int heads_left = tiling.group - tile.head_begin;
  tile.heads = heads_left < tiling.chunk_heads ? heads_left : tiling.chunk_heads;
  return tile;
}

}  // namespace aludel::cuda
