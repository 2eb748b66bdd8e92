#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.h"

// The product for shapes and types that cuBLASLt declines (an f32 bias on a bf16 result, strides that it
// cannot load). Classic 16 x 16 shared tiles: bound by shared memory, a few percent of what cuBLASLt reaches.

namespace aludel::cuda {
namespace {

constexpr int kTile = 16;

template <typename In, typename Out>
__global__ void TileGemm(const In* a, int64_t a_stride, const In* w, const float* bias, bool accumulate,
                         Out* out, int64_t out_stride, int64_t rows, int64_t cols, int64_t depth) {
  __shared__ float a_tile[kTile][kTile];
  __shared__ float w_tile[kTile][kTile + 1];  // padded: read by column
  const int64_t column_begin = int64_t{blockIdx.x} * kTile;
  const int64_t column = column_begin + threadIdx.x;
  // blockIdx.y is bounded at 65,535, so tall products go round.
  for (int64_t row_begin = int64_t{blockIdx.y} * kTile; row_begin < rows;
       row_begin += int64_t{gridDim.y} * kTile) {
    const int64_t row = row_begin + threadIdx.y;
    const int64_t w_row = column_begin + threadIdx.y;
    float sum = 0.0f;
    for (int64_t begin = 0; begin < depth; begin += kTile) {
      const int64_t d = begin + threadIdx.x;
      a_tile[threadIdx.y][threadIdx.x] = row < rows && d < depth ? Load(a + row * a_stride + d) : 0.0f;
      w_tile[threadIdx.y][threadIdx.x] = w_row < cols && d < depth ? Load(w + w_row * depth + d) : 0.0f;
      __syncthreads();
      for (int i = 0; i < kTile; ++i) sum += a_tile[threadIdx.y][i] * w_tile[threadIdx.x][i];
      __syncthreads();
    }
    if (row >= rows || column >= cols) continue;
    Out* element = out + row * out_stride + column;
    if (bias != nullptr) sum += bias[column];
    if (accumulate) sum += Load(element);
    Store(element, sum);
  }
}

}  // namespace

cudaError_t LaunchTileGemm(const TensorView& a, const void* w, const float* bias, bool accumulate,
                           const TensorView& out, cudaStream_t stream) {
  if (out.rows == 0 || out.cols == 0) return cudaSuccess;
  const int64_t row_tiles = (out.rows + kTile - 1) / kTile;
  const dim3 grid(static_cast<unsigned>((out.cols + kTile - 1) / kTile),
                  static_cast<unsigned>(row_tiles < 65535 ? row_tiles : 65535));
  return WithElementType(a.dtype, [&](auto* in_type) {
    return WithElementType(out.dtype, [&](auto* out_type) {
      TileGemm<<<grid, dim3(kTile, kTile), 0, stream>>>(
          static_cast<decltype(in_type)>(a.data), a.stride,
          static_cast<decltype(in_type)>(const_cast<void*>(w)), bias, accumulate,
          static_cast<decltype(out_type)>(out.data), out.stride, out.rows, out.cols, a.cols);
      return cudaGetLastError();
    });
  });
}

}  // namespace aludel::cuda
