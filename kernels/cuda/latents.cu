#include "kernels/cuda/latents.cuh"

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

__global__ void __launch_bounds__(kLatentThreads) Pack(const __grid_constant__ LatentArgs args) {
  __shared__ LatentTile tile;
  PackLatentTile(args, &tile);
}

__global__ void __launch_bounds__(kLatentThreads) Unpack(const __grid_constant__ LatentArgs args) {
  __shared__ LatentTile tile;
  UnpackLatentTile(args, &tile);
}

dim3 GridOf(const TensorView& z) {
  return dim3(static_cast<unsigned>((z.cols + kLatentColumns - 1) / kLatentColumns),
              static_cast<unsigned>((z.rows + kLatentTokens - 1) / kLatentTokens));
}

}  // namespace

cudaError_t LaunchPackLatents(const TensorView& z, float inverse_step, const LatentPlane* planes,
                              uint8_t* bytes, cudaStream_t stream) {
  const LatentArgs args{z.f32(), /*narrow=*/false, z.stride, z.rows, static_cast<int>(z.cols), planes, bytes,
                        0,       inverse_step};
  Pack<<<GridOf(z), kLatentThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchUnpackLatents(const uint8_t* bytes, const LatentPlane* planes, int64_t first, float step,
                                const TensorView& z, cudaStream_t stream) {
  const LatentArgs args{z.data, z.dtype == DType::kBf16,     z.stride, z.rows, static_cast<int>(z.cols),
                        planes, const_cast<uint8_t*>(bytes), first,    step};
  Unpack<<<GridOf(z), kLatentThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace aludel::cuda
