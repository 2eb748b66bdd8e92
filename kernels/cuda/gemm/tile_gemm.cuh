#pragma once

#include "kernels/cuda/element.cuh"

// The product for shapes and types that cuBLASLt declines (an f32 bias on a bf16 result, strides that it
// cannot load). Classic 16 x 16 shared tiles: bound by shared memory, a few percent of what cuBLASLt reaches.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

constexpr int kTile = 16;

struct TileShared {
  float a[kTile][kTile];
  float w[kTile][kTile + 1];  // padded: read by column
};

template <typename In, typename Out>
__device__ void MultiplyTile(const In* a, int64_t a_stride, const In* w, const float* bias, bool accumulate,
                             Out* out, int64_t out_stride, int64_t rows, int64_t cols, int64_t depth,
                             TileShared* shared) {
  const int64_t column_begin = static_cast<int64_t>(blockIdx.x) * kTile;
  const int64_t column = column_begin + threadIdx.x;
  // blockIdx.y is bounded at 65,535, so tall products go round.
  for (int64_t row_begin = static_cast<int64_t>(blockIdx.y) * kTile; row_begin < rows;
       row_begin += static_cast<int64_t>(gridDim.y) * kTile) {
    const int64_t row = row_begin + threadIdx.y;
    const int64_t w_row = column_begin + threadIdx.y;
    float sum = 0.0f;
    for (int64_t begin = 0; begin < depth; begin += kTile) {
      const int64_t d = begin + threadIdx.x;
      shared->a[threadIdx.y][threadIdx.x] = row < rows && d < depth ? Load(a + row * a_stride + d) : 0.0f;
      shared->w[threadIdx.y][threadIdx.x] = w_row < cols && d < depth ? Load(w + w_row * depth + d) : 0.0f;
      __syncthreads();
      for (int i = 0; i < kTile; ++i) sum += shared->a[threadIdx.y][i] * shared->w[threadIdx.x][i];
      __syncthreads();
    }
    if (row >= rows || column >= cols) continue;
    Out* element = out + row * out_stride + column;
    if (bias != nullptr) sum += bias[column];
    if (accumulate) sum += Load(element);
    Store(element, sum);
  }
}

}  // namespace aludel::cuda
