#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/tensor.h"

// How E4M3 numbers lie on the device, as cuBLASLt takes them: rows one after another, each filled up with zeros to whole
// pieces of kFp8Piece; those of W followed by rows of zeros up to a multiple of that. And what kernels of fp8_gemm.cuh are given.
namespace aludel::cuda {

constexpr int kFp8Piece = 16;
ALUDEL_HOST_DEVICE constexpr int64_t Fp8Padded(int64_t count) {
  return (count + kFp8Piece - 1) / kFp8Piece * kFp8Piece;
}

constexpr int kFp8RowThreads = 256;

// Rows of numbers, and the codes and scales that they become.
struct Fp8RowsArgs {
  TensorView rows;
  uint8_t* codes;  // [rows, Fp8Padded(cols)]
  float* scales;   // [rows]
};

// out (+)= sums * a_scales * w_scales + bias.
struct Fp8SumsArgs {
  const float* sums;  // [rows, sums_stride]
  int64_t sums_stride;
  const float* a_scales;  // [rows]
  const float* w_scales;  // [cols]
  const float* bias;      // [cols] or null
  bool accumulate;
  TensorView out;
};

// The product of few rows, which are taken as they are.
struct Fp8SkinnyArgs {
  const uint8_t* w;       // [Fp8Padded(outs), Fp8Padded(in)]
  const float* w_scales;  // [outs]
  const Bf16* a;          // [rows, a_stride], 16-byte aligned, a_stride % 8 == 0
  int64_t a_stride;
  int64_t in;
  const float* bias;  // [outs] or null
  bool accumulate;
  TensorView out;  // at most kSkinnyRows rows
};

}  // namespace aludel::cuda
