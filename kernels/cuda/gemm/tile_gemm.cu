#include "kernels/cuda/gemm/tile_gemm.cuh"

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

template <typename In, typename Out>
__global__ void TileGemm(const In* a, int64_t a_stride, const In* w, const float* bias, bool accumulate,
                         Out* out, int64_t out_stride, int64_t rows, int64_t cols, int64_t depth) {
  __shared__ TileShared shared;
  MultiplyTile(a, a_stride, w, bias, accumulate, out, out_stride, rows, cols, depth, &shared);
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
