#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "kernels/check.h"
#include "kernels/cuda/gemm/low_rank_index.h"
#include "kernels/ops.h"

// The host's half of low_rank.cuh: where the numbers of an update lie in one allocation, and which rows of a batch
// meet in which launch. Plain arithmetic, so that it is tested without a GPU.
namespace aludel::cuda {

// Of the updates of one matrix: A, then B, then scales and spans, each from a multiple of 16 bytes on.
struct LowRankLayout {
  int64_t in = 0;
  DType dtype = DType::kF32;
  std::vector<LowRankSpan> spans;
  int64_t rank = 0;       // of all spans
  int64_t out_tiles = 0;  // likewise
  size_t b = 0, scales = 0, spans_begin = 0, bytes = 0;

  // With the layout's bytes at `memory`.
  LowRankUpdate At(const char* memory) const {
    return {memory,
            memory + b,
            reinterpret_cast<const float*>(memory + scales),
            reinterpret_cast<const LowRankSpan*>(memory + spans_begin),
            static_cast<int32_t>(rank),
            static_cast<int32_t>(spans.size()),
            static_cast<int32_t>(out_tiles)};
  }
};

inline LowRankLayout LayOutLowRank(absl::Span<const LowRankPart> parts, int64_t in, DType dtype) {
  LowRankLayout layout{in, dtype};
  int64_t b = 0;
  for (const LowRankPart& part : parts) {
    layout.spans.push_back({part.out_begin, part.b.rows, b, static_cast<int32_t>(layout.rank),
                            static_cast<int32_t>(part.a.rows)});
    b += part.a.rows * LowRankStride(part.b.rows);
    layout.rank += part.a.rows;
    layout.out_tiles += LowRankOutTiles(part.b.rows);
  }
  const auto next = [](size_t at) { return (at + 15) / 16 * 16; };
  layout.b = next(layout.rank * in * SizeOf(dtype));
  layout.scales = next(layout.b + b * SizeOf(dtype));
  layout.spans_begin = next(layout.scales + layout.rank * sizeof(float));
  layout.bytes = layout.spans_begin + layout.spans.size() * sizeof(LowRankSpan);
  return layout;
}

// What those bytes are.
inline std::vector<char> PackedLowRankBytes(const LowRankLayout& layout,
                                            absl::Span<const LowRankPart> parts) {
  std::vector<char> bytes(layout.bytes);
  const auto put = [&](size_t begin, int64_t at, const TensorView& from, int64_t row, int64_t col) {
    const int64_t i = row * from.stride + col;
    const float value = from.dtype == DType::kF32 ? from.f32()[i] : ToFloat(from.bf16()[i]);
    if (layout.dtype == DType::kF32) {
      std::memcpy(&bytes[begin + at * sizeof(float)], &value, sizeof(float));
    } else {
      const Bf16 narrow = ToBf16(value);
      std::memcpy(&bytes[begin + at * sizeof(Bf16)], &narrow, sizeof(Bf16));
    }
  };
  for (size_t p = 0; p < parts.size(); ++p) {
    const LowRankPart& part = parts[p];
    const LowRankSpan& span = layout.spans[p];
    for (int64_t k = 0; k < span.rank; ++k) {
      const int64_t rank = span.rank_begin + k;
      for (int64_t i = 0; i < layout.in; ++i) put(0, rank * layout.in + i, part.a, k, i);
      for (int64_t o = 0; o < span.outputs; ++o) {
        put(layout.b, span.b + k * LowRankStride(span.outputs) + o, part.b, o, k);
      }
      std::memcpy(&bytes[layout.scales + rank * sizeof(float)], &part.scale, sizeof(float));
    }
  }
  std::memcpy(&bytes[layout.spans_begin], layout.spans.data(), layout.spans.size() * sizeof(LowRankSpan));
  return bytes;
}

// The tiles of one pair of launches.
struct LowRankPiece {
  std::vector<LowRankTile> tiles;
  int64_t sums = 0;  // of all rows

  int32_t most_rank() const { return Most(&LowRankUpdate::rank); }
  int32_t most_out_tiles() const { return Most(&LowRankUpdate::out_tiles); }

 private:
  int32_t Most(int32_t LowRankUpdate::*field) const {
    int32_t most = 0;
    for (const LowRankTile& tile : tiles) most = std::max(most, tile.update.*field);
    return most;
  }
};

// Adds rows of an update to the last piece, or to new ones where that would have more than `most_tiles` tiles, or
// `most_sums` sums: a tile's own are at most so many.
inline void PlanLowRank(const LowRankUpdate& update, absl::Span<const int32_t> rows, size_t most_tiles,
                        int64_t most_sums, std::vector<LowRankPiece>* pieces) {
  for (size_t begin = 0; begin < rows.size(); begin += kLowRankRows) {
    LowRankTile tile{update};
    tile.count = static_cast<int32_t>(std::min<size_t>(kLowRankRows, rows.size() - begin));
    std::copy_n(rows.begin() + begin, tile.count, tile.rows);
    const int64_t sums = int64_t{tile.count} * update.rank;
    ALUDEL_CHECK(sums <= most_sums);
    if (pieces->empty() || pieces->back().tiles.size() == most_tiles ||
        pieces->back().sums + sums > most_sums) {
      pieces->emplace_back();
    }
    LowRankPiece& piece = pieces->back();
    tile.sums = piece.sums;
    piece.sums += sums;
    piece.tiles.push_back(tile);
  }
}

}  // namespace aludel::cuda
