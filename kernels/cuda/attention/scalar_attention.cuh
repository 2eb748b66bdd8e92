#pragma once

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/index.h"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/warp.cuh"

// Attention where the tensor cores' kernels (mma_attention.cuh) cannot go: pages of f32, odd head sizes.
// Online softmax over tiles of 32 keys (Milakov & Gimelshein 2018; Dao et al. 2022), for prefill and decode
// alike, in f32. Prefill is bound by shared memory reads (about 1.5 per 4 multiply-adds); decode by the few
// blocks that one (sequence, kv head) makes.
//
// A block owns one tile of queries of one kv head, see QueryTiling, and walks the keys that any of them sees.
// Each warp owns every kWarps-th query. For scores a lane owns a key; for the weighted values it owns every
// 32nd dimension.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

constexpr int kScalarWarps = 4;
constexpr int kScalarKeyTile = 32;  // a key per lane

// Rows of queries and keys are padded with zeros to whole float4s; a key row to one float more, so that the
// 32 lanes of a warp, a row each, read 32 banks.
ALUDEL_HOST_DEVICE inline int PaddedDim(int head_dim) { return (head_dim + 3) / 4 * 4; }
ALUDEL_HOST_DEVICE inline int KeyStride(int head_dim) { return PaddedDim(head_dim) + 1; }

// Queries first: float4 reads want 16-byte alignment.
inline size_t ScalarSharedBytes(int queries, int head_dim) {
  return sizeof(float) * (static_cast<size_t>(queries) * PaddedDim(head_dim) + kScalarKeyTile * head_dim +
                          kScalarKeyTile * KeyStride(head_dim));
}

// The keys and values at positions [begin, end) of [tile, tile + kScalarKeyTile), a warp per position. The rest
// becomes zero: pages beyond the sequence hold anything, and 0 * NaN would be NaN.
template <typename Page>
__device__ void LoadKeys(const KvPlanes& kv, const int32_t* blocks, int kv_head, int64_t tile, int64_t begin,
                         int64_t end, float* keys, float* values) {
  const int lane = threadIdx.x % 32;
  const int stride = KeyStride(kv.head_dim);
  for (int j = threadIdx.x / 32; j < kScalarKeyTile; j += kScalarWarps) {
    const int64_t position = tile + j;
    const bool there = position >= begin && position < end;
    int64_t page = 0;
    if (there) {
      page = PageOffset(blocks[position / kv.block_tokens], kv.kv_heads, kv_head, kv.block_tokens,
                        static_cast<int>(position % kv.block_tokens), kv.head_dim);
    }
    const Page* k = static_cast<const Page*>(kv.k) + page;
    const Page* v = static_cast<const Page*>(kv.v) + page;
    for (int d = lane; d < kv.head_dim; d += 32) {
      keys[j * stride + d] = there ? Load(k + d) : 0.0f;
      values[j * kv.head_dim + d] = there ? Load(v + d) : 0.0f;
    }
    for (int d = kv.head_dim + lane; d < stride; d += 32) keys[j * stride + d] = 0.0f;
  }
}

// Which query a tile's slot `i` is: rows outermost, so that positions never descend.
struct ScalarQuery {
  int64_t row;  // of the sequence's rows
  int head;     // of the group's heads
};
__device__ inline ScalarQuery QueryAt(const QueryTile& tile, int i) {
  return {tile.row_begin + i / tile.heads, tile.head_begin + i % tile.heads};
}

// kQueries per warp; kDims * 32 >= head_dim. grid (tiles, kv_heads). In and Out are the types of q and out.
template <typename In, typename Out, typename Page, int kQueries, int kDims>
__device__ void AttendTile(const In* q, int64_t q_stride, Out* out, int64_t out_stride, float scale,
                           int64_t window, const SequenceTable& table, const QueryTiling& tiling,
                           const int64_t* first_tile, const KvPlanes& kv, float4* shared4) {
  const int head_dim = kv.head_dim;
  const int padded = PaddedDim(head_dim);
  float* queries = reinterpret_cast<float*>(shared4);           // [kScalarWarps * kQueries, padded], scaled
  float* keys = queries + kScalarWarps * kQueries * padded;     // [kScalarKeyTile, KeyStride]
  float* values = keys + kScalarKeyTile * KeyStride(head_dim);  // [kScalarKeyTile, head_dim]
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;

  const int64_t tile_index = blockIdx.x;
  const int kv_head = blockIdx.y;
  const int sequence = FindInterval(first_tile, table.count, tile_index);
  const SequenceEntry entry = table.entries[sequence];
  const QueryTile tile = TileAt(tiling, entry.rows, tile_index - first_tile[sequence]);
  const int count = tile.rows * tile.heads;

  for (int i = warp; i < count; i += kScalarWarps) {
    const ScalarQuery query = QueryAt(tile, i);
    const In* row = q + (entry.row_begin + query.row) * q_stride +
                    static_cast<int64_t>(kv_head * tiling.group + query.head) * head_dim;
    for (int d = lane; d < padded; d += 32) {
      queries[i * padded + d] = d < head_dim ? Load(row + d) * scale : 0.0f;
    }
  }

  // Query `warp + s * kScalarWarps` of the tile in slot s.
  float maximum[kQueries], weight[kQueries], sums[kQueries][kDims];
  int64_t position[kQueries];
  int mine = 0;
#pragma unroll
  for (int s = 0; s < kQueries; ++s) {
    const int i = warp + s * kScalarWarps;
    if (i < count) mine = s + 1;
    position[s] = entry.position_begin + QueryAt(tile, i < count ? i : 0).row;
    maximum[s] = -INFINITY;
    weight[s] = 0.0f;  // this lane's share
#pragma unroll
    for (int c = 0; c < kDims; ++c) sums[s][c] = 0.0f;
  }

  const int32_t* blocks = table.blocks + entry.block_begin;
  const int64_t begin = FirstVisible(entry.position_begin + tile.row_begin, window);
  const int64_t end = entry.position_begin + tile.row_begin + tile.rows;
  for (int64_t key_tile = begin / kScalarKeyTile * kScalarKeyTile; key_tile < end;
       key_tile += kScalarKeyTile) {
    __syncthreads();  // the previous tile has been read
    LoadKeys<Page>(kv, blocks, kv_head, key_tile, begin, end, keys, values);
    __syncthreads();

    float p[kQueries];  // this lane's key: scores, then weights
#pragma unroll
    for (int s = 0; s < kQueries; ++s) p[s] = 0.0f;
    const float* key = keys + lane * KeyStride(head_dim);
    for (int d = 0; d < padded; d += 4) {
      const float k0 = key[d], k1 = key[d + 1], k2 = key[d + 2], k3 = key[d + 3];
#pragma unroll
      for (int s = 0; s < kQueries; ++s) {
        if (s >= mine) continue;
        const float4 x = *reinterpret_cast<const float4*>(queries + (warp + s * kScalarWarps) * padded + d);
        p[s] += x.x * k0 + x.y * k1 + x.z * k2 + x.w * k3;
      }
    }

    const int64_t key_position = key_tile + lane;
#pragma unroll
    for (int s = 0; s < kQueries; ++s) {
      const int64_t first = FirstVisible(position[s], window);
      // Uniform in the warp: this query sees nothing of the tile.
      if (s >= mine || first >= key_tile + kScalarKeyTile || position[s] < key_tile) {
        p[s] = 0.0f;
        continue;
      }
      const bool visible = key_position >= first && key_position <= position[s];
      const float score = visible ? p[s] : -INFINITY;
      const float new_maximum = fmaxf(maximum[s], WarpMax(score, 32));
      const float correction = expf(maximum[s] - new_maximum);
      p[s] = visible ? expf(score - new_maximum) : 0.0f;
      weight[s] = weight[s] * correction + p[s];
      maximum[s] = new_maximum;
#pragma unroll
      for (int c = 0; c < kDims; ++c) sums[s][c] *= correction;
    }

    for (int j = 0; j < kScalarKeyTile; ++j) {
      float value[kDims];
#pragma unroll
      for (int c = 0; c < kDims; ++c) {
        const int d = lane + c * 32;
        value[c] = d < head_dim ? values[j * head_dim + d] : 0.0f;
      }
#pragma unroll
      for (int s = 0; s < kQueries; ++s) {
        if (s >= mine) continue;
        const float share = __shfl_sync(kAllLanes, p[s], j);
        // A key that this query must not see adds nothing, even where its value is not a number.
        if (share == 0.0f) continue;
#pragma unroll
        for (int c = 0; c < kDims; ++c) sums[s][c] += share * value[c];
      }
    }
  }

#pragma unroll
  for (int s = 0; s < kQueries; ++s) {
    if (s >= mine) continue;
    const ScalarQuery query = QueryAt(tile, warp + s * kScalarWarps);
    const float total = WarpSum(weight[s], 32);
    Out* row = out + (entry.row_begin + query.row) * out_stride +
               static_cast<int64_t>(kv_head * tiling.group + query.head) * head_dim;
#pragma unroll
    for (int c = 0; c < kDims; ++c) {
      const int d = lane + c * 32;
      if (d < head_dim) Store(row + d, sums[s][c] / total);
    }
  }
}

}  // namespace aludel::cuda
