#include "kernels/cuda/token_quantizer.cuh"

#include <cmath>

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kTokenThreads)
    Quantize(const T* values, const __grid_constant__ TokenArgs args) {
  extern __shared__ float x[];
  __shared__ float scratch[32];
  QuantizeToken(values, args, x, scratch);
}

__global__ void __launch_bounds__(kTokenThreads)
    Dequantize(const __grid_constant__ TokenArgs args, float* values) {
  extern __shared__ float x[];
  DequantizeToken(args, values, x);
}

TokenArgs ArgsOf(const TensorView& x, int bits, int64_t block, const uint8_t* scales, const uint8_t* codes) {
  return {x.stride,
          static_cast<int>(x.cols),
          static_cast<int>(block),
          1.0f / std::sqrt(static_cast<float>(block)),
          bits,
          const_cast<uint8_t*>(scales),
          const_cast<uint8_t*>(codes)};
}

}  // namespace

cudaError_t LaunchQuantizeTokens(const TensorView& x, int bits, int64_t block, uint8_t* scales,
                                 uint8_t* codes, cudaStream_t stream) {
  const TokenArgs args = ArgsOf(x, bits, block, scales, codes);
  const auto rows = static_cast<unsigned>(x.rows);
  const size_t shared = x.cols * sizeof(float);
  if (x.dtype == DType::kF32) {
    Quantize<<<rows, kTokenThreads, shared, stream>>>(x.f32(), args);
  } else {
    Quantize<<<rows, kTokenThreads, shared, stream>>>(x.bf16(), args);
  }
  return cudaGetLastError();
}

cudaError_t LaunchDequantizeTokens(const uint8_t* scales, const uint8_t* codes, int bits, int64_t block,
                                   const TensorView& x, cudaStream_t stream) {
  Dequantize<<<static_cast<unsigned>(x.rows), kTokenThreads, x.cols * sizeof(float), stream>>>(
      ArgsOf(x, bits, block, scales, codes), x.f32());
  return cudaGetLastError();
}

}  // namespace aludel::cuda
