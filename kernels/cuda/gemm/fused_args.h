#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/gemm/skinny_index.h"
#include "kernels/cuda/index.h"
#include "kernels/tensor.h"

// What the kernels of fused_gemm.cuh are given.
namespace aludel::cuda {

constexpr int kFusedRows = 8;                 // of x, at most: one tile of the product's
constexpr size_t kFusedRowBytes = 32 << 10;   // that they take as bf16
constexpr int kFusedPairs = kSkinnyOuts / 2;  // of outputs, in a tile

// From row to row of the normed rows in shared memory: 64 bytes more than they have, so that the two rows which eight lanes
// read at once lie in different banks.
ALUDEL_HOST_DEVICE constexpr int64_t FusedStride(int64_t in) { return in + 32; }
constexpr size_t FusedSharedBytes(int64_t rows, int64_t in) { return rows * FusedStride(in) * sizeof(Bf16); }

struct NormedRows {
  const float* x;
  int64_t stride;
  int64_t rows;
  int64_t in;
  const float* weight;
  float eps;
};

struct QkvArgs {
  NormedRows a;
  const Bf16* q_w;
  const Bf16* kv_w;
  const float* bias;    // [q_dim + 2 kv_dim] or null
  const float* angles;  // [rows, 2, head_dim / 2]
  float* q;
  int64_t q_stride;
  int heads;
  SequenceTable table;
  KvPlanes kv;
};

ALUDEL_HOST_DEVICE constexpr int QkvTiles(const QkvArgs& args) {
  return (args.heads + 2 * args.kv.kv_heads) * args.kv.head_dim / kSkinnyOuts;
}

struct GateArgs {
  NormedRows a;
  const Bf16* w;      // [2 cols, in]
  const float* bias;  // [2 cols] or null
  Bf16* out;
  int64_t out_stride;
  int64_t cols;
};

ALUDEL_HOST_DEVICE constexpr int GateTiles(const GateArgs& args) {
  return static_cast<int>(args.cols / kFusedPairs);
}

}  // namespace aludel::cuda
