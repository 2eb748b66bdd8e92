#include "kernels/cuda/gemm/skinny_gemm.cuh"

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_behind.cuh"

namespace aludel::cuda {
namespace {

template <int kRowTiles>
__global__ void __launch_bounds__(kSkinnyThreads, kRowTiles == 1 ? kSkinnyBlocksPerSm : 1)
    Bf16Product(const __grid_constant__ SkinnyArgs args) {
  __shared__ float shared[kSkinnySharedBytes / sizeof(float)];
  SkinnyBf16<kRowTiles>(args, shared);
}

template <WeightFormat kFormat, int kRowTiles>
__global__ void __launch_bounds__(kSkinnyThreads) ScaledProduct(const __grid_constant__ SkinnyArgs args) {
  __shared__ float shared[kSkinnySums];
  SkinnyScaled<kFormat, kRowTiles>(args, shared);
}

__global__ void __launch_bounds__(32)
    QuantizeRows(const __grid_constant__ TensorView a, int8_t* values, float* scales) {
  QuantizeRun(a, values, scales);
}

template <typename T>
__global__ void Dequantize(const void* w, const Bf16* scales, int64_t in, WeightFormat format,
                           int64_t first_out, T* to) {
  DequantizeOut(w, scales, in, format, first_out, to);
}

}  // namespace

cudaError_t LaunchSkinnyGemm(const SkinnyArgs& args, WeightFormat format, int blocks, bool early,
                             cudaStream_t stream) {
  if (args.out.rows == 0 || args.out.cols == 0) return cudaSuccess;
  const int tiles = SkinnyTiles(args.out.cols);
  const auto grid = static_cast<unsigned>(format == WeightFormat::kBf16 ? std::min(tiles, blocks) : tiles);
  const bool few = args.out.rows <= 8;
  const auto kernel =
      format == WeightFormat::kInt8
          ? (few ? ScaledProduct<WeightFormat::kInt8, 1> : ScaledProduct<WeightFormat::kInt8, 2>)
      : format == WeightFormat::kInt4
          ? (few ? ScaledProduct<WeightFormat::kInt4, 1> : ScaledProduct<WeightFormat::kInt4, 2>)
          : (few ? Bf16Product<1> : Bf16Product<2>);
  return LaunchBehind(early, kernel, grid, kSkinnyThreads, 0, stream, args);
}

cudaError_t LaunchQuantizeRows(const TensorView& a, int8_t* values, float* scales, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(RunsOf(a.cols)), kSkinnyRows);
  QuantizeRows<<<grid, 32, 0, stream>>>(a, values, scales);
  return cudaGetLastError();
}

cudaError_t LaunchDequantize(const void* w, const Bf16* scales, WeightFormat format, int64_t first_out,
                             const TensorView& to, cudaStream_t stream) {
  if (to.rows == 0) return cudaSuccess;
  return WithElementType(to.dtype, [&](auto* type) {
    Dequantize<<<static_cast<unsigned>(to.rows), 256, 0, stream>>>(w, scales, to.cols, format, first_out,
                                                                   static_cast<decltype(type)>(to.data));
    return cudaGetLastError();
  });
}

}  // namespace aludel::cuda
