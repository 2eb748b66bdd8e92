#pragma once

#include "kernels/cuda/warp.cuh"
#include "kernels/token_quantizer.h"

// Vectors to small integers and back, the bits of kernels/cpu/token_quantizer.cc: a block per vector, which
// it rotates in shared memory.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

constexpr int kTokenThreads = 256;

struct TokenArgs {
  int64_t stride;  // from vector to vector
  int width;
  int block;   // of the rotation
  float norm;  // 1 / sqrt(block)
  int bits;
  uint8_t* scales;
  uint8_t* codes;
};

// The butterflies of every block; without the norm.
__device__ inline void Rotate(float* x, const TokenArgs& args) {
  for (int half = 1; half < args.block; half *= 2) {
    __syncthreads();
    for (int pair = threadIdx.x; pair < args.width / 2; pair += kTokenThreads) {
      const int at = pair / half * 2 * half + pair % half;
      const float low = x[at];
      const float high = x[at + half];
      x[at] = low + high;
      x[at + half] = low - high;
    }
  }
  __syncthreads();
}

// grid (vectors); `x` [width] is shared, as is `scratch` [32].
template <typename T>
__device__ void QuantizeToken(const T* values, const TokenArgs& args, float* x, float* scratch) {
  const int64_t token = blockIdx.x;
  values += token * args.stride;
  for (int i = threadIdx.x; i < args.width; i += kTokenThreads) x[i] = Load(values + i);
  Rotate(x, args);
  // Not finite, and so is the scale: infinity.
  constexpr float kTooLarge = 3.4028235e38f;
  float largest = 0.0f;
  for (int i = threadIdx.x; i < args.width; i += kTokenThreads) {
    x[i] *= args.norm;
    const float size = fabsf(x[i]);
    largest = size <= kTooLarge ? fmaxf(largest, size) : __uint_as_float(0x7f800000u);
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, offset));
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = largest;
  __syncthreads();  // and all of x is there
  for (int warp = 0; warp < kTokenThreads / 32; ++warp) largest = fmaxf(largest, scratch[warp]);
  const uint16_t scale = ScaleBits(largest, args.bits);  // kNoScale of infinity
  if (threadIdx.x == 0) {
    args.scales[2 * token] = static_cast<uint8_t>(scale);
    args.scales[2 * token + 1] = static_cast<uint8_t>(scale >> 8);
  }
  if (!IsScale(scale)) return;
  const float step = __uint_as_float(static_cast<uint32_t>(scale) << 16);
  const auto level = [&](int i) { return static_cast<unsigned>(LevelOf(x[i], step, args.bits)); };
  const int bytes = args.width * args.bits / 8;
  uint8_t* const codes = args.codes + token * bytes;
  for (int i = threadIdx.x; i < bytes; i += kTokenThreads) {
    codes[i] =
        static_cast<uint8_t>(args.bits == 8 ? level(i) : (level(2 * i) & 0xfu) | level(2 * i + 1) << 4);
  }
}

__device__ inline void DequantizeToken(const TokenArgs& args, float* values, float* x) {
  const int64_t token = blockIdx.x;
  const uint32_t scale = args.scales[2 * token] | static_cast<uint32_t>(args.scales[2 * token + 1]) << 8;
  const float step = __uint_as_float(scale << 16);
  const uint8_t* const codes = args.codes + token * (args.width * args.bits / 8);
  for (int i = threadIdx.x; i < args.width; i += kTokenThreads) {
    const int level =
        args.bits == 8 ? static_cast<int8_t>(codes[i]) : SignedNibble(codes[i / 2] >> (i % 2 == 0 ? 0 : 4));
    x[i] = step * static_cast<float>(level);
  }
  Rotate(x, args);
  values += token * args.stride;
  for (int i = threadIdx.x; i < args.width; i += kTokenThreads) values[i] = x[i] * args.norm;
}

}  // namespace aludel::cuda
