#pragma once

#include <cstdint>

#include "kernels/cuda/index.h"
#include "kernels/tensor.h"
#include "kernels/weight_format.h"

// How weights with scales lie on the device: rows of W one after another, each filled up with zeros to whole
// runs of kRunInputs inputs. A lane of skinny_gemm.cuh owns, of every group of kScaleInputs inputs, 8 that
// lie side by side, and reads what it owns of several groups as 16 bytes: two groups of int8, four of int4.
namespace aludel::cuda {

constexpr int kLaneInputs = 8;
constexpr int kRunInputs = 256;  // that a warp takes at once
constexpr int kRunGroups = kRunInputs / static_cast<int>(kScaleInputs);

ALUDEL_HOST_DEVICE constexpr int64_t RunsOf(int64_t in) { return (in + kRunInputs - 1) / kRunInputs; }
ALUDEL_HOST_DEVICE constexpr int64_t ScaledRowBytes(int64_t in, WeightFormat format) {
  return RunsOf(in) * kRunInputs / (format == WeightFormat::kInt4 ? 2 : 1);
}

// The byte of int8 input k within a row: of every 64 inputs lane t holds [8 t, 8 t + 8) of the first group
// and of the second.
ALUDEL_HOST_DEVICE constexpr int64_t Int8Byte(int64_t k) {
  const int64_t group = k / 32 % 2, lane = k % 32 / 8, at = k % 8;
  return k / 64 * 64 + lane * 16 + group * 8 + at;
}

// Of every 128 inputs lane t holds its 8 of each of four groups, a 32-bit word per group. Inputs 0 to 3 of
// the word are its bytes' low halves, 4 to 7 the high ones, in two's complement.
ALUDEL_HOST_DEVICE constexpr int64_t Int4Byte(int64_t k) {
  const int64_t group = k / 32 % 4, lane = k % 32 / 8, at = k % 4;
  return k / 128 * 64 + lane * 16 + group * 4 + at;
}
ALUDEL_HOST_DEVICE constexpr bool Int4IsHigh(int64_t k) { return k % 8 >= 4; }

constexpr int kSkinnyRows = 16;  // of `a`, at most
constexpr int kSkinnyOuts = 16;  // of a tile
ALUDEL_HOST_DEVICE constexpr int SkinnyTiles(int64_t out) {
  return static_cast<int>((out + kSkinnyOuts - 1) / kSkinnyOuts);
}

// Blocks of bf16 that run at once: as many on an SM with at most eight rows, with more one.
constexpr int kSkinnyBlocksPerSm = 2;
constexpr int SkinnyBlocks(int64_t rows, int multiprocessors) {
  return multiprocessors * (rows <= 8 ? kSkinnyBlocksPerSm : 1);
}

struct SkinnyArgs {
  const void* w;          // bf16: [out, in]; else rows in runs, as above
  const Bf16* w_scales;   // [out, groups], whole runs
  const void* a;          // bf16: [rows, a_stride]; else int8 [rows, runs * kRunInputs] in Int8Byte's order
  const float* a_scales;  // [groups, kSkinnyRows]
  int64_t a_stride;
  int64_t in;
  const float* bias;  // [out] or null
  bool accumulate;
  TensorView out;
};

}  // namespace aludel::cuda
