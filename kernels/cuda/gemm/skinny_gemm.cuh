#pragma once

#include "kernels/cuda/gemm/skinny_index.h"
#include "kernels/cuda/warp.cuh"

// Products with few rows of `a`, as decode steps make them: bound by reading W once. A block computes tiles of 16
// outputs for all rows, its warps taking runs of inputs in turn; sums meet in shared memory. W is the left
// factor of mma, straight from memory into registers: a sum over inputs may run in any order, so a lane takes
// inputs that lie side by side, 16 bytes at once, for the places that the instruction gives it, and the same
// ones of `a`. Of bf16, as many blocks as run at once share all tiles, so that what comes before the first is done once
// for each, and a tile's first weights are on their way while the one in front of it is finished.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

constexpr int kSkinnyWarps = 8;
constexpr int kSkinnyThreads = kSkinnyWarps * 32;
constexpr int kSkinnySumStride = kSkinnyOuts + 1;
constexpr int kSkinnySums = kSkinnyWarps * kSkinnyRows * kSkinnySumStride;  // floats
constexpr int kSkinnySumBytes = kSkinnySums * 4;
// Of one tile's sums, and the next one's.
constexpr int kSkinnySharedBytes = 2 * kSkinnySumBytes;

// d[n][i] of lane: output SkinnyOut(lane, i) of the block, row SkinnyRow(lane, n, i).
ALUDEL_HOST_DEVICE constexpr int SkinnyOut(int lane, int i) { return lane / 4 + i / 2 * 8; }
ALUDEL_HOST_DEVICE constexpr int SkinnyRow(int lane, int n, int i) { return n * 8 + lane % 4 * 2 + i % 2; }

// Keeps the warps' sums [kSkinnyWarps, kSkinnyRows, kSkinnySumStride].
template <int kRowTiles>
__device__ void KeepSkinny(const float (&sums)[kRowTiles][4], float* shared) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      shared[(warp * kSkinnyRows + SkinnyRow(lane, n, i)) * kSkinnySumStride + SkinnyOut(lane, i)] =
          sums[n][i];
    }
  }
}

// What they add up to, from `sum` on.
__device__ inline float SkinnyTotal(const float* shared, int row, int out, float sum = 0.0f) {
#pragma unroll
  for (int w = 0; w < kSkinnyWarps; ++w) sum += shared[(w * kSkinnyRows + row) * kSkinnySumStride + out];
  return sum;
}

// Rows of bf16 that W is multiplied with.
struct SkinnyRows {
  const Bf16* data;
  int64_t stride;
  int64_t rows;
  int64_t in;
};

// What a product adds to its outputs beside W x and a bias: here nothing, or what adapted_gemm.cuh has.
struct NothingAdded {
  // Once the rows of `x` can be read, while the first weights are on their way: by all threads, without a barrier at its end.
  // kSkinnySums floats at `scratch`. The block's first tile has kSkinnyOuts / 2 outputs from each of `first` on.
  __device__ void Begin(const SkinnyRows&, float*, const int64_t (&)[2]) const {}
  // Before the outputs of a tile are finished.
  __device__ void Await(int) const {}
  // What an output gets, and the output with it, whose product, with all else that belongs to it, would be rounded to Out.
  __device__ float Of(int, int64_t) const { return 0.0f; }
  template <typename Out>
  __device__ static float Sum(float product, float) {
    return product;
  }
  // When all of the block's tiles are.
  __device__ void End() const {}
};

// Adds the warps' sums of a tile up and writes its outputs.
template <typename Added = NothingAdded>
__device__ void StoreSkinny(const SkinnyArgs& args, int64_t tile, const float* shared,
                            const Added& added = {}) {
  const int64_t first_out = tile * kSkinnyOuts;
  for (int c = threadIdx.x; c < args.out.rows * kSkinnyOuts; c += kSkinnyThreads) {
    const int row = c / kSkinnyOuts;
    const int64_t out = first_out + c % kSkinnyOuts;
    if (out >= args.out.cols) continue;
    const float sum = SkinnyTotal(shared, row, c % kSkinnyOuts, args.bias == nullptr ? 0.0f : args.bias[out]);
    const float more = added.Of(row, out);
    const int64_t at = row * args.out.stride + out;
    if (args.out.dtype == DType::kF32) {
      float* const to = static_cast<float*>(args.out.data) + at;
      Store(to, Added::template Sum<float>(args.accumulate ? sum + *to : sum, more));
    } else {
      Bf16* const to = static_cast<Bf16*>(args.out.data) + at;
      Store(to, Added::template Sum<Bf16>(args.accumulate ? sum + Load(to) : sum, more));
    }
  }
}

// The lane's row of W in a tile, `half` * 8 further down: outputs beyond the last read that one and are not stored.
__device__ inline int64_t SkinnyWeightRow(const SkinnyArgs& args, int64_t tile, int half) {
  const int64_t row = tile * kSkinnyOuts + threadIdx.x % 32 / 4 + half * 8;
  return row < args.out.cols ? row : args.out.cols - 1;
}

// The block's tiles of 16 outputs: blockIdx.x, and every gridDim.x-th behind it, of `tiles`, which are no fewer than blocks. weights(tile, w) finds the lane's
// two rows of W. `meanwhile` runs when the first weights have been asked for and before `a` is read, which is loaded a run
// ahead where it is `far`, in device memory. finish(tile, sums) is called by all threads when the warps' sums are at `sums`.
// kSkinnySharedBytes at `shared`.
template <int kRowTiles, bool far, typename Weights, typename Meanwhile, typename Finish>
__device__ void MultiplyTiles(int tiles, const SkinnyRows& a, float* shared, const Weights& weights,
                              const Meanwhile& meanwhile, const Finish& finish) {
  constexpr int kSteps = 4;  // of 32 inputs, which a run of a warp has
  constexpr int kRun = kSteps * 4 * kLaneInputs;
  constexpr int kAhead = far ? kSteps : 1;  // of them that have `a` beside W, or a step that is not used
  const int lane = threadIdx.x % 32;
  const int first = lane % 4 * kLaneInputs;
  struct Run {
    uint4 w[kSteps][2];
    uint4 a[kAhead][kRowTiles];
  };
  const auto rows_at = [&](int64_t begin, int s, uint4(&rows)[kRowTiles]) {
    const int64_t k = begin + s * 4 * kLaneInputs + first;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const int row = n * 8 + lane / 4;
      rows[n] = k < a.in && row < a.rows ? *reinterpret_cast<const uint4*>(a.data + row * a.stride + k)
                                         : uint4{0, 0, 0, 0};
    }
  };
  const auto load_w = [&](const Bf16* const(&w)[2], int64_t begin, Run& run) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int64_t k = begin + s * 4 * kLaneInputs + first;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        run.w[s][half] = k < a.in ? LoadOnce(w[half] + k) : uint4{0, 0, 0, 0};
      }
    }
  };
  const auto load_a = [&](int64_t begin, Run& run) {
    if constexpr (far) {
#pragma unroll
      for (int s = 0; s < kAhead; ++s) rows_at(begin, s, run.a[s]);
    }
  };
  Run next;
  const int64_t step = int64_t{kSkinnyWarps} * kRun;
  const int64_t first_run = threadIdx.x / 32 * kRun;
  // Without it ptxas moves the first loads behind the wait for the kernel in front.
  const bool works = first_run < a.in;
  const Bf16* w[2] = {};
  int tile = blockIdx.x;
  if (works) {
    weights(tile, w);
    load_w(w, first_run, next);
  }
  meanwhile();
  if (works) load_a(first_run, next);
  float* sums_at = shared;
  for (; tile < tiles; tile += gridDim.x) {
    float sums[kRowTiles][4] = {};
    for (int64_t begin = first_run; begin < a.in; begin += step) {
      const Run run = next;
      if (begin + step < a.in) {
        load_w(w, begin + step, next);
        load_a(begin + step, next);
      } else if (tile + gridDim.x < tiles) {
        weights(tile + gridDim.x, w);
        load_w(w, first_run, next);
        load_a(first_run, next);
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint4 low = run.w[s][0], high = run.w[s][1];
        const uint32_t first_half[4] = {low.x, high.x, low.y, high.y};
        const uint32_t second_half[4] = {low.z, high.z, low.w, high.w};
        uint4 near[kRowTiles];
        if constexpr (!far) rows_at(begin, s, near);
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const uint4 rows = far ? run.a[s % kAhead][n] : near[n];
          Mma(sums[n], first_half, rows.x, rows.y);
          Mma(sums[n], second_half, rows.z, rows.w);
        }
      }
    }
    KeepSkinny<kRowTiles>(sums, sums_at);
    __syncthreads();  // and all have finished the tile before this one, whose sums the next will overwrite
    finish(tile, sums_at);
    sums_at = shared + (kSkinnySums - (sums_at - shared));
  }
}

// W and a of bf16; in % 8 == 0, rows of both 16-byte aligned, at most 8 * kRowTiles rows. A grid of at most SkinnyTiles, kSkinnyThreads
// threads, kSkinnySharedBytes at `shared`.
template <int kRowTiles, typename Added = NothingAdded>
__device__ void SkinnyBf16(const SkinnyArgs& args, float* shared, const Added& added = {}) {
  AllowNext();
  const SkinnyRows a{static_cast<const Bf16*>(args.a), args.a_stride, args.out.rows, args.in};
  MultiplyTiles<kRowTiles, true>(
      SkinnyTiles(args.out.cols), a, shared,
      [&](int tile, const Bf16*(&w)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          w[half] = static_cast<const Bf16*>(args.w) + SkinnyWeightRow(args, tile, half) * args.in;
        }
      },
      [&] {
        AwaitEarlier();
        const int64_t first = int64_t{blockIdx.x} * kSkinnyOuts;
        added.Begin(a, shared + kSkinnySums, {first, first + kSkinnyOuts / 2});
      },
      [&](int tile, const float* sums) {
        added.Await(tile);
        StoreSkinny(args, tile, sums, added);
      });
  added.End();
}

// W with scales, `a` as QuantizeRow leaves it; a block for each tile, kSkinnySumBytes at `shared`. Products within a group are exact integers; int4 stands in the
// high halves of bytes, 16 times too large, which its scale takes back.
template <WeightFormat kFormat, int kRowTiles>
__device__ void SkinnyScaled(const SkinnyArgs& args, float* shared) {
  AllowNext();
  constexpr bool kInt8 = kFormat == WeightFormat::kInt8;
  constexpr int kLoads = kInt8 ? kRunGroups / 2 : kRunGroups / 4;  // of W, 16 bytes each
  const int lane = threadIdx.x % 32;
  const int64_t runs = RunsOf(args.in);
  const char* w[2];
  const Bf16* scales[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = SkinnyWeightRow(args, blockIdx.x, half);
    w[half] = static_cast<const char*>(args.w) + row * ScaledRowBytes(args.in, kFormat) + lane % 4 * 16;
    scales[half] = args.w_scales + row * runs * kRunGroups;
  }
  struct Run {
    uint4 w[kLoads][2];
    uint4 scales[2];
  };
  const auto load = [&](int64_t index, Run& run) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int l = 0; l < kLoads; ++l) run.w[l][half] = LoadOnce(w[half] + (index * kLoads + l) * 64);
      run.scales[half] = LoadOnce(scales[half] + index * kRunGroups);
    }
  };
  float sums[kRowTiles][4] = {};
  Run next;
  int64_t index = threadIdx.x / 32;
  if (index < runs) load(index, next);
  AwaitEarlier();
  for (; index < runs; index += kSkinnyWarps) {
    const Run run = next;
    if (index + kSkinnyWarps < runs) load(index + kSkinnyWarps, next);
    uint4 a[kRunGroups / 2][kRowTiles];
#pragma unroll
    for (int l = 0; l < kRunGroups / 2; ++l) {
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const int row = n * 8 + lane / 4;
        a[l][n] = row < args.out.rows ? *reinterpret_cast<const uint4*>(static_cast<const char*>(args.a) +
                                                                        (row * runs + index) * kRunInputs +
                                                                        l * 64 + lane % 4 * 16)
                                      : uint4{0, 0, 0, 0};
      }
    }
#pragma unroll
    for (int g = 0; g < kRunGroups; ++g) {
      uint32_t words[2][2];  // [half][inputs 0 to 3, 4 to 7]
      float w_scale[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kInt8) {
          const uint4 bytes = run.w[g / 2][half];
          words[half][0] = g % 2 == 0 ? bytes.x : bytes.z;
          words[half][1] = g % 2 == 0 ? bytes.y : bytes.w;
        } else {
          const uint4 quads = run.w[g / 4][half];
          const uint32_t word = g % 4 == 0 ? quads.x : g % 4 == 1 ? quads.y : g % 4 == 2 ? quads.z : quads.w;
          words[half][0] = word << 4 & 0xf0f0f0f0u;
          words[half][1] = word & 0xf0f0f0f0u;
        }
        const uint4 all = run.scales[half];
        const uint32_t pair = g / 2 == 0 ? all.x : g / 2 == 1 ? all.y : g / 2 == 2 ? all.z : all.w;
        const float scale = __uint_as_float(g % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
        w_scale[half] = kInt8 ? scale : scale * 0.0625f;
      }
      const uint32_t factors[4] = {words[0][0], words[1][0], words[0][1], words[1][1]};
      const float* const a_scale = args.a_scales + (index * kRunGroups + g) * kSkinnyRows;
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const uint4 bytes = a[g / 2][n];
        int32_t products[4] = {0, 0, 0, 0};
        MmaInt8(products, factors, g % 2 == 0 ? bytes.x : bytes.z, g % 2 == 0 ? bytes.y : bytes.w);
        const float row_scale[2] = {a_scale[SkinnyRow(lane, n, 0)], a_scale[SkinnyRow(lane, n, 1)]};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[n][i] += w_scale[i / 2] * row_scale[i % 2] * static_cast<float>(products[i]);
        }
      }
    }
  }
  KeepSkinny<kRowTiles>(sums, shared);
  __syncthreads();
  StoreSkinny(args, blockIdx.x, shared);
}

// Rows of `a` to int8 with a scale per group, the largest at 127, as the CPU rounds them; a group with NaN or
// infinities becomes zeros with a scale of that kind. One warp per run of a row, a group per 4 lanes; rows
// from a.rows to kSkinnyRows get scales of 0. grid (runs, kSkinnyRows), 32 threads.
__device__ inline void QuantizeRun(const TensorView& a, int8_t* values, float* scales) {
  const int lane = threadIdx.x % 32;
  const int64_t run = blockIdx.x;
  const int64_t row = blockIdx.y;
  const int64_t group = run * kRunGroups + lane / 4;
  const int64_t first = group * kScaleInputs + lane % 4 * kLaneInputs;
  float x[kLaneInputs];
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kLaneInputs; ++i) {
    x[i] = 0.0f;
    if (row < a.rows && first + i < a.cols) {
      const int64_t at = row * a.stride + first + i;
      x[i] = a.dtype == DType::kF32 ? Load(static_cast<const float*>(a.data) + at)
                                    : Load(static_cast<const Bf16*>(a.data) + at);
    }
    // As integers, NaN is the largest of all.
    largest = __uint_as_float(max(__float_as_uint(largest), __float_as_uint(x[i]) & 0x7fffffffu));
  }
#pragma unroll
  for (int bits = 1; bits < 4; bits *= 2) {
    largest = __uint_as_float(
        max(__float_as_uint(largest), __float_as_uint(__shfl_xor_sync(kAllLanes, largest, bits))));
  }
  const float scale = largest / 127.0f;
  const float reciprocal = 1.0f / scale;
  const float inverse = scale != 0.0f && reciprocal - reciprocal == 0.0f ? reciprocal : 0.0f;
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kLaneInputs; ++i) {
    // Added to a small float it leaves the nearest integer in the low bits.
    const float shifted = (inverse == 0.0f ? 0.0f : x[i] * inverse) + 0x1.8p23f;
    words[i / 4] |= (__float_as_uint(shifted) & 0xffu) << (i % 4 * 8);
  }
  if (lane % 4 == 0) scales[group * kSkinnyRows + row] = scale;
  if (row >= a.rows) return;
  uint32_t* const to =
      reinterpret_cast<uint32_t*>(values + row * RunsOf(a.cols) * kRunInputs + Int8Byte(first));
  to[0] = words[0];
  to[1] = words[1];
}

// Weight (out, k) of a matrix with scales.
__device__ inline float ScaledWeight(const void* w, const Bf16* scales, int64_t in, WeightFormat format,
                                     int64_t out, int64_t k) {
  const char* const row = static_cast<const char*>(w) + out * ScaledRowBytes(in, format);
  int value = 0;
  if (format == WeightFormat::kInt8) {
    value = static_cast<signed char>(row[Int8Byte(k)]);
  } else {
    const int byte = static_cast<unsigned char>(row[Int4Byte(k)]);
    value = Int4IsHigh(k) ? byte >> 4 : byte & 15;
    value -= value >= 8 ? 16 : 0;
  }
  return Load(scales + out * RunsOf(in) * kRunGroups + k / kScaleInputs) * static_cast<float>(value);
}

// A block per output.
template <typename T>
__device__ void DequantizeOut(const void* w, const Bf16* scales, int64_t in, WeightFormat format,
                              int64_t first_out, T* to) {
  const int64_t out = first_out + blockIdx.x;
  to += static_cast<int64_t>(blockIdx.x) * in;
  for (int64_t k = threadIdx.x; k < in; k += blockDim.x) {
    Store(to + k, ScaledWeight(w, scales, in, format, out, k));
  }
}

}  // namespace aludel::cuda
