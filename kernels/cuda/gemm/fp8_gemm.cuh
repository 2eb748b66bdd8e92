#pragma once

#include "kernels/cuda/gemm/fp8_index.h"
#include "kernels/cuda/gemm/skinny_gemm.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/e4m3_scale.h"

// Products of E4M3 weights: what stands before and behind cuBLASLt's of many rows, and a kernel for few, which are bound by
// reading W once, a byte a weight.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

// Two codes, the first in the low byte. As ToE4m3: its numbers are none that are not finite.
__device__ inline uint32_t PackE4m3(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(second), "f"(first));
  return packed;
#else
  return ToE4m3(first) | static_cast<uint32_t>(ToE4m3(second)) << 8;
#endif
}

// Each half of a pair of bf16 times 2^120, rounded, subnormals whole.
__device__ inline uint32_t RaiseBf16(uint32_t pair) {
#ifdef __CUDA_ARCH__
  constexpr uint32_t kFactor = 0x7b807b80u, kMinusZero = 0x80008000u;
  uint32_t raised;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(raised) : "r"(pair), "r"(kFactor), "r"(kMinusZero));
  return raised;
#else
  const float low = __uint_as_float(pair << 16) * 0x1p120f;
  const float high = __uint_as_float(pair & 0xffff0000u) * 0x1p120f;
  return NarrowBits(low) | static_cast<uint32_t>(NarrowBits(high)) << 16;
#endif
}

// The four codes of a word as bf16, exactly: their bits move to bf16's places, and the factor makes up for what the
// exponents' biases differ by. A NaN becomes 480: the scale of its row is NaN.
__device__ inline void E4m3ToBf16(uint32_t word, uint32_t (&pairs)[2]) {
  const uint32_t high_bytes[2] = {(word & 0xffu) << 8 | (word & 0xff00u) << 16,
                                  (word >> 8 & 0xff00u) | (word & 0xff000000u)};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    pairs[i] = RaiseBf16((high_bytes[i] & 0x80008000u) | (high_bytes[i] >> 4 & 0x07f007f0u));
  }
}

// Row blockIdx.x to codes and a scale (E4m3ScaleOf), zeros behind its last. `shared` [kFp8RowThreads / 32].
template <typename In, bool kVectors>
__device__ void QuantizeFp8Row(const Fp8RowsArgs& args, uint32_t* shared) {
  const int64_t row = blockIdx.x;
  const int64_t cols = args.rows.cols;
  const In* const x = static_cast<const In*>(args.rows.data) + row * args.rows.stride;
  const auto load = [&](int64_t c, float(&values)[kVector]) {
    if constexpr (kVectors) {
      LoadVector(x + c, values);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = c + i < cols ? Load(x + c + i) : 0.0f;
    }
  };
  // Without their signs floats order as integers do, NaN last.
  uint32_t largest = 0;
  for (int64_t c = threadIdx.x * kVector; c < cols; c += kFp8RowThreads * kVector) {
    float values[kVector];
    load(c, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) largest = max(largest, __float_as_uint(values[i]) & 0x7fffffffu);
  }
#pragma unroll
  for (int bits = 1; bits < 32; bits *= 2) {
    largest = max(largest, __shfl_xor_sync(kAllLanes, largest, bits));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kFp8RowThreads / 32; ++warp) largest = max(largest, shared[warp]);
  const E4m3Scale scale = E4m3ScaleOf(__uint_as_float(largest));
  if (threadIdx.x == 0) args.scales[row] = scale.scale;
  uint8_t* const codes = args.codes + row * Fp8Padded(cols);
  for (int64_t c = threadIdx.x * kVector; c < Fp8Padded(cols); c += kFp8RowThreads * kVector) {
    float values[kVector] = {};
    if (c < cols) load(c, values);
    uint32_t words[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const four = values + 4 * i;
      words[i] = PackE4m3(E4m3Input(four[0], scale), E4m3Input(four[1], scale)) |
                 PackE4m3(E4m3Input(four[2], scale), E4m3Input(four[3], scale)) << 16;
    }
    *reinterpret_cast<uint64_t*>(codes + c) = words[0] | static_cast<uint64_t>(words[1]) << 32;
  }
}

// Row blockIdx.x of sums of codes to numbers.
template <typename Out, bool kVectors>
__device__ void ScaleFp8Row(const Fp8SumsArgs& args) {
  constexpr int kStep = kVectors ? kVector : 1;
  const int64_t row = blockIdx.x;
  const float a_scale = args.a_scales[row];
  const float* const sums = args.sums + row * args.sums_stride;
  Out* const out = static_cast<Out*>(args.out.data) + row * args.out.stride;
  for (int64_t c = threadIdx.x * kStep; c < args.out.cols; c += blockDim.x * kStep) {
    float values[kStep], w_scales[kStep], bias[kStep] = {}, before[kStep] = {};
    LoadStep(sums + c, values);
    LoadStep(args.w_scales + c, w_scales);
    if (args.bias != nullptr) LoadStep(args.bias + c, bias);
    if (args.accumulate) LoadStep(out + c, before);
#pragma unroll
    for (int i = 0; i < kStep; ++i) {
      values[i] = values[i] * (a_scale * w_scales[i]) + bias[i] + before[i];
    }
    StoreStep(out + c, values);
  }
}

// Eight inputs of `row` from k on; zeros where there are none.
__device__ inline uint4 Fp8SkinnyRow(const Fp8SkinnyArgs& args, int row, int64_t k) {
  if (row >= args.out.rows || k >= args.in) return uint4{0, 0, 0, 0};
  const uint4 pairs = *reinterpret_cast<const uint4*>(args.a + row * args.a_stride + k);
  const int64_t there = args.in - k;
  if (there >= kLaneInputs) return pairs;
  uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] &= 2 * i + 1 < there ? 0xffffffffu : 2 * i < there ? 0xffffu : 0u;
  }
  return uint4{words[0], words[1], words[2], words[3]};
}

// W codes, `a` bf16, sums in f32. A block for each tile of 16 outputs, kSkinnyThreads threads, kSkinnySumBytes at `shared`.
template <int kRowTiles>
__device__ void SkinnyFp8(const Fp8SkinnyArgs& args, float* shared) {
  AllowNext();
  constexpr int kSteps = 4;             // which a run of a warp has
  constexpr int kStep = 4 * kFp8Piece;  // inputs: 16 side by side for each lane of a row
  constexpr int kRun = kSteps * kStep;
  const int lane = threadIdx.x % 32;
  const int first = lane % 4 * kFp8Piece;
  const int64_t padded = Fp8Padded(args.in);
  const uint8_t* w[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    w[half] = args.w + (int64_t{blockIdx.x} * kSkinnyOuts + lane / 4 + half * 8) * padded;
  }
  struct Run {
    uint4 w[kSteps][2];
  };
  const auto load = [&](int64_t begin, Run& run) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t k = begin + s * kStep + first;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        run.w[s][half] = k < padded ? LoadOnce(w[half] + k) : uint4{0, 0, 0, 0};
      }
    }
  };
  float sums[kRowTiles][4] = {};
  Run next;
  int64_t begin = threadIdx.x / 32 * kRun;
  if (begin < padded) load(begin, next);
  AwaitEarlier();
  for (; begin < padded; begin += kSkinnyWarps * kRun) {
    const Run run = next;
    if (begin + kSkinnyWarps * kRun < padded) load(begin + kSkinnyWarps * kRun, next);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t k = begin + s * kStep + first;
      uint32_t a[kRowTiles][8];  // pairs of inputs
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 pairs = Fp8SkinnyRow(args, n * 8 + lane / 4, k + half * kLaneInputs);
          a[n][half * 4] = pairs.x, a[n][half * 4 + 1] = pairs.y;
          a[n][half * 4 + 2] = pairs.z, a[n][half * 4 + 3] = pairs.w;
        }
      }
      const uint4 low = run.w[s][0], high = run.w[s][1];
      const uint32_t words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t pairs[2][2];  // [half of the outputs][inputs 0 and 1, 2 and 3]
        E4m3ToBf16(words[0][i], pairs[0]);
        E4m3ToBf16(words[1][i], pairs[1]);
        const uint32_t factors[4] = {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) Mma(sums[n], factors, a[n][2 * i], a[n][2 * i + 1]);
      }
    }
  }
  KeepSkinny<kRowTiles>(sums, shared);
  __syncthreads();
  const int64_t first_out = int64_t{blockIdx.x} * kSkinnyOuts;
  for (int c = threadIdx.x; c < args.out.rows * kSkinnyOuts; c += kSkinnyThreads) {
    const int row = c / kSkinnyOuts;
    const int64_t out = first_out + c % kSkinnyOuts;
    if (out >= args.out.cols) continue;
    float sum = SkinnyTotal(shared, row, c % kSkinnyOuts) * args.w_scales[out];
    if (args.bias != nullptr) sum += args.bias[out];
    const int64_t at = row * args.out.stride + out;
    if (args.out.dtype == DType::kF32) {
      float* const to = static_cast<float*>(args.out.data) + at;
      Store(to, args.accumulate ? sum + *to : sum);
    } else {
      Bf16* const to = static_cast<Bf16*>(args.out.data) + at;
      Store(to, args.accumulate ? sum + Load(to) : sum);
    }
  }
}

}  // namespace aludel::cuda
