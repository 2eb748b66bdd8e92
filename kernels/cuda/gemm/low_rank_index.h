#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/tensor.h"

// How low-rank updates lie on the device, and how a batch whose rows take different ones is cut into blocks of the
// kernels in low_rank.cuh.
namespace aludel::cuda {

constexpr int kLowRankRows = 8;         // of a tile, at most
constexpr int kLowRankRanks = 4;        // rows of A that a block of the first product takes
constexpr int kLowRankOuts = 256;       // outputs that a block of the second takes, two a thread
constexpr int kLowRankSumsAtOnce = 64;  // of a row, in shared memory
constexpr int kShrinkThreads = 256;
constexpr int kExpandThreads = kLowRankOuts / 2;
constexpr int kShrinkSharedBytes = kShrinkThreads / 32 * kLowRankRows * kLowRankRanks * 4;
constexpr int kExpandSharedBytes = kLowRankSumsAtOnce * kLowRankRows * 4;

// The update of outputs [out_begin, out_begin + outputs) of W.
struct LowRankSpan {
  int64_t out_begin;
  int64_t outputs;
  int64_t b;           // of its first number among B's: [rank, LowRankStride(outputs)]
  int32_t rank_begin;  // of its rows among A's
  int32_t rank;
};

// B is kept by ranks, so that threads read outputs side by side, in pairs.
ALUDEL_HOST_DEVICE constexpr int64_t LowRankStride(int64_t outputs) { return (outputs + 1) / 2 * 2; }
ALUDEL_HOST_DEVICE constexpr int64_t LowRankOutTiles(int64_t outputs) {
  return (outputs + kLowRankOuts - 1) / kLowRankOuts;
}

// All updates of one matrix by one adapter. Device memory.
struct LowRankUpdate {
  const void* a;             // [rank, in], of all spans
  const void* b;             // of one span after another, as LowRankSpan says; 4-byte aligned
  const float* scales;       // [rank]
  const LowRankSpan* spans;  // [span_count]
  int32_t rank;
  int32_t span_count;
  int32_t out_tiles;  // of all spans
};

// Rows of a batch that take the same update.
struct LowRankTile {
  LowRankUpdate update;
  int64_t sums;  // of its first row among those of the launch: [count, update.rank]
  int32_t count;
  int32_t rows[kLowRankRows];
};

// Both products of a launch: sums = scales * x A^T, out += sums B^T. x has the updates' type.
struct LowRankArgs {
  const LowRankTile* tiles;  // [count]
  int32_t count;
  int32_t most_rank;       // of any tile's update
  int32_t most_out_tiles;  // likewise
  TensorView x;
  TensorView out;
  float* sums;
};

}  // namespace aludel::cuda
