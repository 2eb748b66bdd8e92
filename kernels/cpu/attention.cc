#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector/simd.h"

namespace aludel {
namespace {

using cpu::kPanelCols;
using cpu::kTileRows;

// Online softmax over tiles of keys (Milakov & Gimelshein 2018; Dao et al. 2022). Both products of a tile are
// those of a matrix with its weights in panels: scores = Q K^T with keys as outputs, and P V with keys as
// inputs. Tiles start at multiples of kKeyTile, and a query's arithmetic does not depend on its neighbors,
// so its sums run in one order however prompts are cut into chunks and batches. Over a bf16 cache q and P are
// rounded to bf16, too, as the instruction wants them; scores, maxima and sums are f32. Tiles of an FP8 cache
// become bf16 first.
constexpr int kKeyTile = 64;
// Queries (a row and a head each) that share a tile's panels: enough that making them costs little.
constexpr int kQueryTile = 8 * kTileRows;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The type of both products over a cache.
DType ProductType(const PagedKv& kv) { return kv.dtype == DType::kF32 ? DType::kF32 : DType::kBf16; }

// One (query row, query head) of a tile; all heads of a group share the tile's keys.
struct Query {
  int64_t row;  // in the batch
  int64_t position;
  int head;
};

// Words of 4 bytes: one f32, or two bf16 that lie side by side in a product's sum.
struct Scratch {
  struct alignas(64) Line {
    uint32_t words[kPanelCols];
  };

  // `dtype` is the products'.
  void Resize(int head_dim, DType dtype) {
    per_word = dtype == DType::kF32 ? 1 : 2;
    key_words = head_dim / per_word;
    dim_panels = (head_dim + kPanelCols - 1) / kPanelCols;
    key_panels.resize(kKeyTile * key_words / kPanelCols);
    value_panels.resize(dim_panels * kKeyTile / per_word);
    queries.resize(kQueryTile * key_words);
    sums.resize(kQueryTile * dim_panels * kPanelCols);
    row.resize(head_dim);
    narrow.resize(std::max(head_dim, kKeyTile));
  }
  int64_t sum_stride() const { return int64_t{dim_panels} * kPanelCols; }
  uint32_t* keys() { return key_panels.data()->words; }
  uint32_t* values() { return value_panels.data()->words; }

  int per_word = 1;
  int key_words = 0;               // of a head's dimensions
  int dim_panels = 0;              // of a head's dimensions as outputs
  std::vector<Line> key_panels;    // [kKeyTile / kPanelCols][key_words]
  std::vector<Line> value_panels;  // [dim_panels][kKeyTile / per_word]
  std::vector<uint32_t> queries;   // groups of kTileRows queries: [key_words][queries of the group]
  std::vector<float> sums;         // [kQueryTile][dim_panels * kPanelCols]
  std::vector<float> row;
  std::vector<Bf16> narrow;
  std::vector<Bf16> widened;  // of a tile of FP8: [keys, values][kKeyTile][head_dim]
  float maximum[kQueryTile];
  float weight[kQueryTile];
};

// Of the executing thread, as large as its largest head was.
Scratch& ThreadsScratch(int head_dim, DType dtype) {
  thread_local Scratch scratch;
  scratch.Resize(head_dim, dtype);
  return scratch;
}

// A row of words as column `column` of a panel or group `width` wide.
void Spread(const void* row, int words, int width, int column, uint32_t* to) {
  const char* const from = static_cast<const char*>(row);
  for (int i = 0; i < words; ++i) std::memcpy(to + i * width + column, from + 4 * i, 4);
}

// Two rows of values, dimensions [0, cols), side by side.
ALUDEL_SIMD void Interleave(const uint16_t* first, const uint16_t* second, int cols, uint32_t* to) {
  for (int d = 0; d < cols; ++d) to[d] = first[d] | uint32_t{second[d]} << 16;
}

// Rows of FP8, `count` keys and as many values, as bf16.
void WidenTile(int count, int head_dim, const char** keys, const char** values, Scratch& scratch) {
  scratch.widened.resize(2 * kKeyTile * head_dim);
  Bf16* to = scratch.widened.data();
  for (const char** rows : {keys, values}) {
    for (int j = 0; j < count; ++j, to += head_dim) {
      cpu::WidenFp8(reinterpret_cast<const Fp8*>(rows[j]), head_dim, to);
      rows[j] = reinterpret_cast<const char*>(to);
    }
  }
}

// Panels of the keys and values at positions [begin, end), at most kKeyTile. What lies beyond `end` becomes
// zero: pages hold anything there, and 0 * NaN would be NaN.
void LoadTile(const PagedKv& kv, const SequenceRows& sequence, int kv_head, int64_t begin, int64_t end,
              const cpu::MicroKernels& kernels, Scratch& scratch) {
  const auto row_bytes = static_cast<int64_t>(kv.head_dim * SizeOf(kv.dtype));
  const int count = static_cast<int>(end - begin);
  const char* keys[kKeyTile];
  const char* values[kKeyTile];
  for (int j = 0; j < count; ++j) {
    const int64_t position = begin + j;
    const int32_t block = sequence.blocks[position / kv.block_tokens];
    const int64_t offset =
        row_bytes * ((int64_t{block} * kv.kv_heads + kv_head) * kv.block_tokens + position % kv.block_tokens);
    keys[j] = static_cast<const char*>(kv.k) + offset;
    values[j] = static_cast<const char*>(kv.v) + offset;
  }
  if (kv.dtype == DType::kFp8) WidenTile(count, kv.head_dim, keys, values, scratch);
  if (count < kKeyTile) {
    std::fill(scratch.key_panels.begin(), scratch.key_panels.end(), Scratch::Line{});
    std::fill(scratch.value_panels.begin(), scratch.value_panels.end(), Scratch::Line{});
  }
  for (int j = 0; j < count; j += kPanelCols) {
    uint32_t* const panel = scratch.keys() + j * scratch.key_words;
    kernels.transpose(keys + j, std::min(kPanelCols, count - j), scratch.key_words, panel, kPanelCols);
  }
  alignas(64) static constexpr uint16_t kNothing[kPanelCols] = {};
  for (int p = 0; p < scratch.dim_panels; ++p) {
    const int cols = std::min(kPanelCols, kv.head_dim - p * kPanelCols);
    uint32_t* to = scratch.values() + p * kPanelCols * kKeyTile / scratch.per_word;
    const auto part = static_cast<int64_t>(p * kPanelCols * SizeOf(ProductType(kv)));
    for (int j = 0; j < count; j += scratch.per_word, to += kPanelCols) {
      if (scratch.per_word == 1) {
        std::memcpy(to, values[j] + part, cols * sizeof(float));
      } else {
        const auto* second =
            j + 1 < count ? reinterpret_cast<const uint16_t*>(values[j + 1] + part) : kNothing;
        Interleave(reinterpret_cast<const uint16_t*>(values[j] + part), second, cols, to);
      }
      if (cols < kPanelCols) std::fill(to + cols, to + kPanelCols, 0u);
    }
  }
}

// Scores become probabilities relative to the running maximum; those outside [first, last) become 0. Returns
// what earlier sums must be multiplied with.
ALUDEL_SIMD float Soften(float* scores, int first, int last, float scale, float* maximum, float* weight) {
  // Sixteen lanes each for maximum and sum: no serial chain, and one order whatever the vector width.
  constexpr int kLanes = 16;
  for (int j = 0; j < kKeyTile; ++j) scores[j] *= scale;
  std::fill_n(scores, first, kMinusInfinity);
  std::fill_n(scores + last, kKeyTile - last, kMinusInfinity);
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = *maximum;
  for (int j = 0; j < kKeyTile; j += kLanes) {
    for (int i = 0; i < kLanes; ++i) lanes[i] = scores[j + i] > lanes[i] ? scores[j + i] : lanes[i];
  }
  float tile_maximum = lanes[0];
  for (int i = 1; i < kLanes; ++i) tile_maximum = lanes[i] > tile_maximum ? lanes[i] : tile_maximum;
  const float correction = cpu::ExpNonPositive(*maximum - tile_maximum);
  for (int j = 0; j < kKeyTile; ++j) scores[j] = cpu::ExpNonPositive(scores[j] - tile_maximum);
  for (int i = 0; i < kLanes; ++i) lanes[i] = 0.0f;
  for (int j = 0; j < kKeyTile; j += kLanes) {
    for (int i = 0; i < kLanes; ++i) lanes[i] += scores[j + i];
  }
  float tile_weight = 0.0f;
  for (const float lane : lanes) tile_weight += lane;
  *weight = *weight * correction + tile_weight;
  *maximum = tile_maximum;
  return correction;
}

ALUDEL_SIMD void ScaleAndAdd(float correction, const float* add, int count, float* sums) {
  for (int d = 0; d < count; ++d) sums[d] = sums[d] * correction + add[d];
}

ALUDEL_SIMD void DivideRow(float divisor, int count, float* row) {
  for (int d = 0; d < count; ++d) row[d] /= divisor;
}

// The queries of one tile against every key that any of them sees.
class QueryTile {
 public:
  QueryTile(const cpu::MicroKernels& kernels, const TensorView& q, const AttentionParams& params,
            const SequenceRows& sequence, int kv_head, const PagedKv& kv, const TensorView& out)
      : kernels_(kernels),
        q_(q),
        params_(params),
        sequence_(sequence),
        kv_head_(kv_head),
        kv_(kv),
        out_(out),
        type_(ProductType(kv)),
        scale_(params.scale / KeyScale(kv.dtype)),
        scratch_(ThreadsScratch(params.head_dim, type_)) {}

  void Attend(absl::Span<const Query> queries) {
    queries_ = queries;
    PackQueries();
    std::fill_n(scratch_.sums.begin(), size() * scratch_.sum_stride(), 0.0f);
    const int64_t end = queries.back().position + 1;
    for (int64_t tile = FirstVisible(queries.front().position) / kKeyTile * kKeyTile; tile < end;
         tile += kKeyTile) {
      LoadTile(kv_, sequence_, kv_head_, tile, std::min<int64_t>(tile + kKeyTile, end), kernels_, scratch_);
      for (int begin = 0; begin < size(); begin += kTileRows) {
        FoldGroup(begin, std::min(kTileRows, size() - begin), tile);
      }
    }
    for (int i = 0; i < size(); ++i) {
      float* const sums = scratch_.sums.data() + i * scratch_.sum_stride();
      DivideRow(scratch_.weight[i], params_.head_dim, sums);
      cpu::StoreRow(sums, out_.Cols(queries_[i].head * params_.head_dim, params_.head_dim), queries_[i].row);
    }
  }

 private:
  int size() const { return static_cast<int>(queries_.size()); }
  int64_t FirstVisible(int64_t position) const {
    return params_.window > 0 ? std::max<int64_t>(0, position - params_.window + 1) : 0;
  }

  void PackQueries() {
    for (int i = 0; i < size(); ++i) {
      const TensorView head = q_.Cols(queries_[i].head * params_.head_dim, params_.head_dim);
      const float* const wide = cpu::LoadRow(head, queries_[i].row, scratch_.row.data());
      const void* row = wide;
      if (type_ == DType::kBf16) {
        cpu::StoreBf16(wide, params_.head_dim, scratch_.narrow.data());
        row = scratch_.narrow.data();
      }
      const int begin = i / kTileRows * kTileRows;
      Spread(row, scratch_.key_words, std::min(kTileRows, size() - begin), i - begin,
             scratch_.queries.data() + begin * scratch_.key_words);
      scratch_.maximum[i] = kMinusInfinity;
      scratch_.weight[i] = 0.0f;
    }
  }

  void Multiply(const uint32_t* a, int rows, const uint32_t* panel, int64_t words, float* sums) const {
    if (type_ == DType::kF32) {
      kernels_.f32_tile(reinterpret_cast<const float*>(a), rows, reinterpret_cast<const float*>(panel), words,
                        sums);
    } else {
      kernels_.bf16_tile(reinterpret_cast<const uint16_t*>(a), rows, reinterpret_cast<const uint16_t*>(panel),
                         2 * words, sums);
    }
  }

  // Queries [begin, begin + count) and the keys of the tile that has been loaded.
  void FoldGroup(int begin, int count, int64_t tile) {
    if (queries_[begin + count - 1].position < tile) return;
    if (FirstVisible(queries_[begin].position) >= tile + kKeyTile) return;
    alignas(64) float part[kTileRows * kPanelCols];
    alignas(64) float scores[kTileRows][kKeyTile];
    alignas(64) uint32_t probabilities[kTileRows * kKeyTile];
    for (int j = 0; j < kKeyTile; j += kPanelCols) {
      Multiply(scratch_.queries.data() + begin * scratch_.key_words, count,
               scratch_.keys() + j * scratch_.key_words, scratch_.key_words, part);
      for (int i = 0; i < count; ++i) {
        std::memcpy(&scores[i][j], part + i * kPanelCols, kPanelCols * sizeof(float));
      }
    }
    float correction[kTileRows];
    const int words = kKeyTile / scratch_.per_word;
    for (int i = 0; i < count; ++i) {
      const int64_t position = queries_[begin + i].position;
      const auto first = static_cast<int>(std::clamp<int64_t>(FirstVisible(position) - tile, 0, kKeyTile));
      const auto last = static_cast<int>(std::clamp<int64_t>(position + 1 - tile, 0, kKeyTile));
      if (first >= last) {
        std::fill_n(scores[i], kKeyTile, 0.0f);
        correction[i] = 1.0f;
      } else {
        correction[i] =
            Soften(scores[i], first, last, scale_, &scratch_.maximum[begin + i], &scratch_.weight[begin + i]);
      }
      const void* row = scores[i];
      if (type_ == DType::kBf16) {
        cpu::StoreBf16(scores[i], kKeyTile, scratch_.narrow.data());
        row = scratch_.narrow.data();
      }
      Spread(row, words, count, i, probabilities);
    }
    for (int p = 0; p < scratch_.dim_panels; ++p) {
      Multiply(probabilities, count, scratch_.values() + p * kPanelCols * words, words, part);
      for (int i = 0; i < count; ++i) {
        ScaleAndAdd(correction[i], part + i * kPanelCols, kPanelCols,
                    scratch_.sums.data() + (begin + i) * scratch_.sum_stride() + p * kPanelCols);
      }
    }
  }

  const cpu::MicroKernels& kernels_;
  const TensorView& q_;
  const AttentionParams& params_;
  const SequenceRows& sequence_;
  const int kv_head_;
  const PagedKv& kv_;
  const TensorView& out_;
  const DType type_;   // of the products
  const float scale_;  // of scores of keys as they are stored
  Scratch& scratch_;
  absl::Span<const Query> queries_;
};

}  // namespace

void CpuOps::Attention(const TensorView& q, const AttentionParams& params,
                       absl::Span<const SequenceRows> sequences, const PagedKv& kv, const TensorView& out,
                       Stream) {
  ALUDEL_CHECK(params.heads % params.kv_heads == 0 && params.kv_heads == kv.kv_heads);
  ALUDEL_CHECK(params.head_dim == kv.head_dim && q.cols == int64_t{params.heads} * params.head_dim);
  ALUDEL_CHECK(out.cols == q.cols && params.head_dim % 2 == 0);
  const int group = params.heads / params.kv_heads;
  const int64_t rows_per_tile = std::max(1, kQueryTile / group);
  // Tasks of all sequences in one loop: (tile of rows, kv head).
  std::vector<int64_t> first_task = {0};
  for (const SequenceRows& sequence : sequences) {
    ALUDEL_CHECK(sequence.position_begin + sequence.rows <=
                 static_cast<int64_t>(sequence.blocks.size()) * kv.block_tokens);
    const int64_t tiles = (sequence.rows + rows_per_tile - 1) / rows_per_tile;
    first_task.push_back(first_task.back() + tiles * params.kv_heads);
  }
  team_.Run(first_task.back(), [&](int64_t index) {
    // The last rows, which see the most keys, begin.
    const int64_t task = first_task.back() - 1 - index;
    const int64_t s = std::upper_bound(first_task.begin(), first_task.end(), task) - first_task.begin() - 1;
    const SequenceRows& sequence = sequences[s];
    const int kv_head = static_cast<int>((task - first_task[s]) % params.kv_heads);
    const int64_t begin = (task - first_task[s]) / params.kv_heads * rows_per_tile;
    const int64_t end = std::min(sequence.rows, begin + rows_per_tile);
    QueryTile tile(kernels_, q, params, sequence, kv_head, kv, out);
    std::vector<Query> queries;
    for (int first_head = 0; first_head < group; first_head += kQueryTile) {
      queries.clear();
      for (int64_t r = begin; r < end; ++r) {
        for (int g = first_head; g < std::min(group, first_head + kQueryTile); ++g) {
          queries.push_back({sequence.row_begin + r, sequence.position_begin + r, kv_head * group + g});
        }
      }
      tile.Attend(queries);
    }
  });
}

}  // namespace aludel
