#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/latents.h"

// Latents between rows of floats and planes of bits. Bound by memory: a block turns a tile of latents by
// tokens over in shared memory, so that rows are read and written along columns and planes along tokens.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

constexpr int kLatentThreads = 256;
constexpr int kLatentColumns = 32;
constexpr int kLatentTokens = 128;  // a multiple of 8: tiles of a packed plane meet between bytes

struct LatentTile {
  int16_t codes[kLatentTokens][kLatentColumns + 2];  // an odd number of banks from token to token
};

struct LatentArgs {
  void* z;      // [tokens, columns], rows `stride` apart
  bool narrow;  // z is bf16 and not f32; only unpacking takes that
  int64_t stride;
  int64_t tokens;
  int columns;
  const LatentPlane* planes;  // [columns]
  uint8_t* bytes;
  int64_t first;  // token of the first row
  float scale;    // packing: 1 / step, unpacking: step
};

// What a block has of a matrix.
struct LatentRange {
  int64_t token;
  int tokens;
  int column;
  int columns;
};

// grid (tiles of columns, tiles of tokens)
__device__ inline LatentRange RangeOf(const LatentArgs& args) {
  const int64_t token = static_cast<int64_t>(blockIdx.y) * kLatentTokens;
  const int column = static_cast<int>(blockIdx.x) * kLatentColumns;
  const int64_t tokens = args.tokens - token;
  const int columns = args.columns - column;
  return {token, tokens < kLatentTokens ? static_cast<int>(tokens) : kLatentTokens, column,
          columns < kLatentColumns ? columns : kLatentColumns};
}

// Calls f(token, column) for every element of the tile, threads along columns.
template <typename F>
__device__ void ForElements(const LatentRange& range, const F& f) {
  const int column = static_cast<int>(threadIdx.x) % kLatentColumns;
  if (column >= range.columns) return;
  for (int t = static_cast<int>(threadIdx.x) / kLatentColumns; t < range.tokens;
       t += kLatentThreads / kLatentColumns) {
    f(t, column);
  }
}

// Calls f(plane, column) once for every column, by all the lanes of a warp.
template <typename F>
__device__ void ForPlanes(const LatentArgs& args, const LatentRange& range, const F& f) {
  for (int column = static_cast<int>(threadIdx.x) / 32; column < range.columns;
       column += kLatentThreads / 32) {
    f(args.planes[range.column + column], column);
  }
}

// Bits [8 * index, 8 * index + 8) of codes in `width` bits each.
__device__ inline uint8_t PackedByte(const LatentTile& tile, int column, int tokens, int width, int index) {
  const uint32_t mask = (1u << width) - 1;
  uint32_t byte = 0;
  for (int t = 8 * index / width; t < tokens && t * width < 8 * index + 8; ++t) {
    const uint32_t code = static_cast<uint32_t>(tile.codes[t][column]) & mask;
    const int shift = t * width - 8 * index;
    byte |= shift < 0 ? code >> -shift : code << shift;
  }
  return static_cast<uint8_t>(byte);
}

__device__ inline void PackLatentTile(const LatentArgs& args, LatentTile* tile) {
  const LatentRange range = RangeOf(args);
  ForElements(range, [&](int t, int column) {
    const float z =
        static_cast<const float*>(args.z)[(range.token + t) * args.stride + range.column + column];
    const int bits = args.planes[range.column + column].bits;
    tile->codes[t][column] = static_cast<int16_t>(LatentCode(z, args.scale, bits));
  });
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ForPlanes(args, range, [&](const LatentPlane& plane, int column) {
    uint8_t* const low = args.bytes + plane.offset + range.token * plane.width / 8;
    const int count = (range.tokens * plane.width + 7) / 8;
    for (int i = lane; i < count; i += 32) low[i] = PackedByte(*tile, column, range.tokens, plane.width, i);
    if (plane.high_offset == 0) return;
    uint8_t* const high = args.bytes + plane.high_offset + range.token;
    for (int t = lane; t < range.tokens; t += 32) high[t] = static_cast<uint8_t>(tile->codes[t][column] >> 8);
  });
}

// The code of one token; reads no byte but its own.
__device__ inline int32_t CodeAt(const LatentArgs& args, const LatentPlane& plane, int64_t token) {
  const int64_t bit = token * plane.width;
  const uint8_t* const low = args.bytes + plane.offset + bit / 8;
  const int skipped = static_cast<int>(bit % 8);
  uint32_t code = low[0];
  for (int i = 1; 8 * i < skipped + plane.width; ++i) code |= static_cast<uint32_t>(low[i]) << 8 * i;
  code >>= skipped;
  if (plane.high_offset > 0) code |= static_cast<uint32_t>(args.bytes[plane.high_offset + token]) << 8;
  return SignExtend(code, plane.stored_bits());
}

__device__ inline void UnpackLatentTile(const LatentArgs& args, LatentTile* tile) {
  const LatentRange range = RangeOf(args);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  ForPlanes(args, range, [&](const LatentPlane& plane, int column) {
    for (int t = lane; t < range.tokens; t += 32) {
      tile->codes[t][column] = static_cast<int16_t>(CodeAt(args, plane, args.first + range.token + t));
    }
  });
  __syncthreads();
  ForElements(range, [&](int t, int column) {
    const int64_t at = (range.token + t) * args.stride + range.column + column;
    const float z = args.scale * static_cast<float>(tile->codes[t][column]);
    if (args.narrow) {
      Store(static_cast<Bf16*>(args.z) + at, z);
    } else {
      Store(static_cast<float*>(args.z) + at, z);
    }
  });
}

}  // namespace aludel::cuda
