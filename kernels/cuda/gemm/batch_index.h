#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/tensor.h"

// How the product of a decode batch, of 9 to 64 rows, is cut into the blocks of batch_gemm.cuh. Outputs are cut into tiles and
// inputs into steps; all steps of all tiles, one tile after the other, are dealt out to blocks in runs of equal length (stream-K,
// Osama et al. 2023), so that any matrix keeps all blocks busy to the end. A tile that several blocks have steps of is added up by
// the one of them that is done last, piece after piece in the order of inputs. The cut follows from the matrix and the GPU and not
// from the rows: what a row gives is the same bits however many others there are.
namespace aludel::cuda {

constexpr int kBatchLeastRows = 9;  // fewer are skinny_gemm.cuh's
constexpr int kBatchRows = 64;
constexpr int kBatchOuts = 128;   // of a tile
constexpr int kBatchInputs = 64;  // of a step
constexpr int kBatchBlocksPerSm = 2;
// Of a block. To fill its pipeline and to add a tile up takes it as long as several steps do.
constexpr int kBatchLeastSteps = 16;
// Sums of a block's part of a tile. A block has at most two such parts that are not the whole tile: 17 MB on 132 SMs, written once,
// read once, and soon enough to be in the cache.
constexpr size_t kBatchPieceBytes = size_t{kBatchOuts} * kBatchRows * sizeof(float);
constexpr int kBatchPieces = 2;

// A step's inputs of a row of W or of `a` lie in shared memory as eight chunks of 16 bytes. The eight lanes that one load serves at
// a time read four chunks of two neighboring rows: odd rows have their halves exchanged, so that those eight are all of a bank row.
constexpr int kBatchChunks = kBatchInputs * static_cast<int>(sizeof(Bf16)) / 16;
constexpr int kBatchRowBytes = kBatchChunks * 16;
ALUDEL_HOST_DEVICE constexpr int BatchChunkAt(int row, int chunk) {
  return row * kBatchRowBytes + (chunk ^ (row & 1) * (kBatchChunks / 2)) * 16;
}

struct BatchCut {
  int32_t tiles;
  int32_t steps;   // of a tile
  int32_t blocks;  // at most as many as all steps

  // The first step of a block's run, counted through all tiles; of `blocks`, the end.
  ALUDEL_HOST_DEVICE constexpr int32_t First(int32_t block) const {
    const int32_t each = tiles * steps / blocks, more = tiles * steps % blocks;
    return block * each + (block < more ? block : more);
  }
  // In whose run a step is.
  ALUDEL_HOST_DEVICE constexpr int32_t BlockOf(int32_t step) const {
    const int32_t each = tiles * steps / blocks, more = tiles * steps % blocks;
    const int32_t longer = more * (each + 1);  // steps of those that have one more
    return step < longer ? step / (each + 1) : more + (step - longer) / each;
  }
  // Where among all pieces that of a block and tile is: a run begins in a tile that it may not have all of, and ends in one.
  ALUDEL_HOST_DEVICE constexpr int32_t PieceOf(int32_t block, int32_t tile) const {
    return block * kBatchPieces + (First(block) < tile * steps ? 1 : 0);
  }
};

constexpr int64_t BatchTiles(int64_t out) { return (out + kBatchOuts - 1) / kBatchOuts; }

// Where `room` bytes are there for pieces.
inline BatchCut CutBatch(int64_t out, int64_t in, int multiprocessors, size_t room) {
  const int64_t tiles = BatchTiles(out), steps = (in + kBatchInputs - 1) / kBatchInputs;
  const int64_t blocks = std::min({int64_t{multiprocessors} * kBatchBlocksPerSm,
                                   static_cast<int64_t>(room / (kBatchPieces * kBatchPieceBytes)),
                                   tiles * steps / kBatchLeastSteps});
  return {static_cast<int32_t>(tiles), static_cast<int32_t>(steps),
          static_cast<int32_t>(std::max<int64_t>(1, blocks))};
}

struct BatchArgs {
  const Bf16* w;  // [out.cols, in]
  const Bf16* a;  // [out.rows, a_stride]
  int64_t a_stride;
  int64_t in;
  const float* bias;  // [out.cols] or null
  bool accumulate;
  TensorView out;
  BatchCut cut;
  float* pieces;      // [blocks, kBatchPieces], of kBatchPieceBytes each
  uint32_t* arrived;  // [tiles], zeros before and behind
};

}  // namespace aludel::cuda
