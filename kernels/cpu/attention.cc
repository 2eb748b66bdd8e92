#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace aludel {
namespace {

// Online softmax over tiles of keys (Milakov & Gimelshein 2018; Dao et al. 2022). Tiles start at multiples of
// kKeyTile, so a token's sum runs in one order however its prompt was cut into chunks.
constexpr int kKeyTile = 64;
constexpr int kQueryTile = 32;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Keys transposed and values of one tile as f32, and the running state of one tile of queries.
struct Scratch {
  explicit Scratch(int head_dim)
      : keys_t(head_dim * kKeyTile),
        values(head_dim * kKeyTile),
        queries(kQueryTile * head_dim),
        scores(kQueryTile * kKeyTile),
        sums(kQueryTile * head_dim),
        row(head_dim) {}
  std::vector<float> keys_t;   // [head_dim, kKeyTile]
  std::vector<float> values;   // [kKeyTile, head_dim]
  std::vector<float> queries;  // [kQueryTile, head_dim], scaled
  std::vector<float> scores;   // [kQueryTile, kKeyTile]
  std::vector<float> sums;     // [kQueryTile, head_dim]
  std::vector<float> row;
  float maximum[kQueryTile];
  float weight[kQueryTile];
};

// One (query row, query head) of a tile; all heads of a group share the tile's keys.
struct Query {
  int64_t row;  // in the batch
  int64_t position;
  int head;
};

ALUDEL_SIMD void Scores(const float* queries, const float* keys_t, int count, int head_dim, float* scores) {
  for (int i = 0; i < count; ++i) {
    float accumulator[kKeyTile] = {};
    for (int d = 0; d < head_dim; ++d) {
      const float q = queries[i * head_dim + d];
      for (int j = 0; j < kKeyTile; ++j) accumulator[j] += q * keys_t[d * kKeyTile + j];
    }
    for (int j = 0; j < kKeyTile; ++j) scores[i * kKeyTile + j] = accumulator[j];
  }
}

// Folds one tile of scores into a query's running maximum, weight and weighted value sum. Scores outside
// [first, last) are masked.
ALUDEL_SIMD void Fold(float* scores, const float* values, int first, int last, int head_dim, float* maximum,
                      float* weight, float* sums) {
  // Sixteen lanes each for maximum and sum: no serial chain, and one order whatever the vector width.
  constexpr int kLanes = 16;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, *maximum);
  for (int j = 0; j < kKeyTile; ++j) {
    const float score = j >= first && j < last ? scores[j] : kMinusInfinity;
    scores[j] = score;
    lanes[j % kLanes] = score > lanes[j % kLanes] ? score : lanes[j % kLanes];
  }
  const float tile_maximum = *std::max_element(lanes, lanes + kLanes);
  const float correction = cpu::ExpNonPositive(*maximum - tile_maximum);
  std::fill_n(lanes, kLanes, 0.0f);
  for (int j = 0; j < kKeyTile; ++j) {
    scores[j] = cpu::ExpNonPositive(scores[j] - tile_maximum);
    lanes[j % kLanes] += scores[j];
  }
  float tile_weight = 0.0f;
  for (float lane : lanes) tile_weight += lane;
  for (int d = 0; d < head_dim; ++d) sums[d] *= correction;
  for (int j = first; j < last; ++j) {
    const float p = scores[j];
    for (int d = 0; d < head_dim; ++d) sums[d] += p * values[j * head_dim + d];
  }
  *weight = *weight * correction + tile_weight;
  *maximum = tile_maximum;
}

ALUDEL_SIMD void Transpose(const float* row, int head_dim, int column, float* keys_t) {
  for (int d = 0; d < head_dim; ++d) keys_t[d * kKeyTile + column] = row[d];
}

void LoadTile(const PagedKv& kv, const SequenceRows& sequence, int kv_head, int64_t begin, int64_t end,
              Scratch& scratch) {
  const TensorView k_plane{kv.k, kv.dtype, INT64_MAX, kv.head_dim, kv.head_dim};
  const TensorView v_plane{kv.v, kv.dtype, INT64_MAX, kv.head_dim, kv.head_dim};
  const TensorView values = TensorView::Of(scratch.values.data(), kKeyTile, kv.head_dim);
  for (int64_t position = begin; position < end; ++position) {
    const int32_t block = sequence.blocks[position / kv.block_tokens];
    const int64_t page_row =
        (int64_t{block} * kv.kv_heads + kv_head) * kv.block_tokens + position % kv.block_tokens;
    const int column = static_cast<int>(position - begin);
    Transpose(cpu::LoadRow(k_plane, page_row, scratch.row.data()), kv.head_dim, column,
              scratch.keys_t.data());
    cpu::StoreRow(cpu::LoadRow(v_plane, page_row, scratch.row.data()), values, column);
  }
}

// The queries of one tile against every key that any of them sees.
void AttendTile(absl::Span<const Query> queries, const TensorView& q, const AttentionParams& params,
                const SequenceRows& sequence, int kv_head, const PagedKv& kv, const TensorView& out,
                Scratch& scratch) {
  const int head_dim = params.head_dim;
  const int count = static_cast<int>(queries.size());
  for (int i = 0; i < count; ++i) {
    const TensorView head = q.Cols(queries[i].head * head_dim, head_dim);
    const float* row = cpu::LoadRow(head, queries[i].row, scratch.row.data());
    for (int d = 0; d < head_dim; ++d) scratch.queries[i * head_dim + d] = row[d] * params.scale;
    scratch.maximum[i] = kMinusInfinity;
    scratch.weight[i] = 0.0f;
  }
  std::fill_n(scratch.sums.begin(), count * head_dim, 0.0f);

  const auto first_visible = [&params](int64_t position) {
    return params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0;
  };
  const int64_t end = queries.back().position + 1;
  for (int64_t tile = first_visible(queries.front().position) / kKeyTile * kKeyTile; tile < end;
       tile += kKeyTile) {
    LoadTile(kv, sequence, kv_head, tile, std::min<int64_t>(tile + kKeyTile, end), scratch);
    Scores(scratch.queries.data(), scratch.keys_t.data(), count, head_dim, scratch.scores.data());
    for (int i = 0; i < count; ++i) {
      const int64_t first = std::max<int64_t>(first_visible(queries[i].position) - tile, 0);
      const int64_t last = std::min<int64_t>(queries[i].position + 1 - tile, kKeyTile);
      if (first >= last) continue;
      Fold(&scratch.scores[i * kKeyTile], scratch.values.data(), static_cast<int>(first),
           static_cast<int>(last), head_dim, &scratch.maximum[i], &scratch.weight[i],
           &scratch.sums[i * head_dim]);
    }
  }
  for (int i = 0; i < count; ++i) {
    float* sums = &scratch.sums[i * head_dim];
    for (int d = 0; d < head_dim; ++d) sums[d] /= scratch.weight[i];
    cpu::StoreRow(sums, out.Cols(queries[i].head * head_dim, head_dim), queries[i].row);
  }
}

}  // namespace

void CpuOps::Attention(const TensorView& q, const AttentionParams& params,
                       absl::Span<const SequenceRows> sequences, const PagedKv& kv, const TensorView& out,
                       Stream) {
  ALUDEL_CHECK(params.heads % params.kv_heads == 0 && params.kv_heads == kv.kv_heads);
  ALUDEL_CHECK(params.head_dim == kv.head_dim && q.cols == int64_t{params.heads} * params.head_dim);
  ALUDEL_CHECK(out.cols == q.cols);
  const int group = params.heads / params.kv_heads;
  const int64_t rows_per_tile = std::max(1, kQueryTile / group);
  for (const SequenceRows& sequence : sequences) {
    ALUDEL_CHECK(sequence.position_begin + sequence.rows <=
                 static_cast<int64_t>(sequence.blocks.size()) * kv.block_tokens);
    const int64_t tiles = (sequence.rows + rows_per_tile - 1) / rows_per_tile;
    team_.Run(tiles * params.kv_heads, [&](int64_t task) {
      Scratch scratch(params.head_dim);
      std::vector<Query> queries;
      const int kv_head = static_cast<int>(task % params.kv_heads);
      const int64_t tile = tiles - 1 - task / params.kv_heads;  // those with the most keys first
      const int64_t end = std::min(sequence.rows, (tile + 1) * rows_per_tile);
      for (int first_head = 0; first_head < group; first_head += kQueryTile) {
        queries.clear();
        for (int64_t r = tile * rows_per_tile; r < end; ++r) {
          for (int g = first_head; g < std::min(group, first_head + kQueryTile); ++g) {
            queries.push_back({sequence.row_begin + r, sequence.position_begin + r, kv_head * group + g});
          }
        }
        AttendTile(queries, q, params, sequence, kv_head, kv, out, scratch);
      }
    });
  }
}

}  // namespace aludel
