#pragma once

#include "kernels/cuda/index.h"

// Which lane holds what in a warp's matrix product D[16, 8] += A[16, 16] B[16, 8] (`mma.sync.m16n8k16`, PTX ISA
// 9.7.14) and how tiles of bf16 lie in shared memory, so that `ldmatrix` delivers exactly that. A row of a
// tile is a head's dimensions; it is cut into chunks of 8 elements, the 16 bytes that one lane names to
// ldmatrix and one cp.async brings.
namespace aludel::cuda {

constexpr int kChunkElements = 8;
constexpr int kChunkBytes = 16;

// Where chunk `chunk` of row `row` lies in a tile with rows of `kDim` elements, counted in chunks. Rows are
// rotated against each other so that the 8 rows of one 8 x 8 matrix, which lie at the same chunk, fall on the
// 8 different sixteenths of a bank row: rows of 16 and 32 chunks (or 8) would all start on the same one, rows
// of 12 on two alternately.
template <int kDim>
ALUDEL_HOST_DEVICE constexpr int SwizzledChunk(int row, int chunk) {
  constexpr int kChunks = kDim / kChunkElements;
  static_assert(kDim % kChunkElements == 0 && kChunks % 4 == 0);
  return row * kChunks + (kChunks % 8 == 0 ? chunk ^ (row & 7) : chunk ^ (row >> 1 & 3));
}

// What a lane names to ldmatrix.x4: a row and chunk of a piece of 16 rows by two chunks.
struct MatrixRow {
  int row;
  int chunk;
};

// The four matrices of A in register order (rows 0-7, rows 8-15, then the same of the second chunk). Also of
// V as B, transposed: its rows are the 16 keys that are summed over, and each chunk is one result of 8
// dimensions, B's two registers next to each other.
ALUDEL_HOST_DEVICE constexpr MatrixRow RowsThenChunks(int lane) { return {lane % 16, lane / 16}; }

// K as B, as it lies: its rows are 16 keys, two results of 8, and the chunks are the dimensions summed over.
ALUDEL_HOST_DEVICE constexpr MatrixRow ChunksThenRows(int lane) {
  return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}

// Element i of [0, 4) of a lane's share of D is at row AccumulatorRow(lane, i / 2), column
// AccumulatorColumn(lane) + i % 2. Two neighboring D are, row by row, one A: registers {D0[0], D0[1]},
// {D0[2], D0[3]}, {D1[0], D1[1]}, {D1[2], D1[3]}.
ALUDEL_HOST_DEVICE constexpr int AccumulatorRow(int lane, int half) { return lane / 4 + half * 8; }
ALUDEL_HOST_DEVICE constexpr int AccumulatorColumn(int lane) { return lane % 4 * 2; }

}  // namespace aludel::cuda
