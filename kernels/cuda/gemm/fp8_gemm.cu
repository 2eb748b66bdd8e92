#include "kernels/cuda/gemm/fp8_gemm.cuh"

#include <type_traits>

#include "kernels/cuda/gemm/fp8_launch.h"
#include "kernels/cuda/launch_behind.cuh"

namespace aludel::cuda {
namespace {

template <typename In, bool kVectors>
__global__ void __launch_bounds__(kFp8RowThreads) QuantizeFp8(const __grid_constant__ Fp8RowsArgs args) {
  __shared__ uint32_t shared[kFp8RowThreads / 32];
  QuantizeFp8Row<In, kVectors>(args, shared);
}

template <typename Out, bool kVectors>
__global__ void ScaleFp8(const __grid_constant__ Fp8SumsArgs args) {
  ScaleFp8Row<Out, kVectors>(args);
}

template <int kRowTiles>
__global__ void __launch_bounds__(kSkinnyThreads, 2) Fp8Product(const __grid_constant__ Fp8SkinnyArgs args) {
  __shared__ float shared[kSkinnySums];
  SkinnyFp8<kRowTiles>(args, shared);
}

bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace

cudaError_t LaunchQuantizeFp8(const Fp8RowsArgs& args, cudaStream_t stream) {
  if (args.rows.rows == 0) return cudaSuccess;
  return WithElementType(args.rows.dtype, [&](auto* type) {
    using In = std::remove_pointer_t<decltype(type)>;
    const auto kernel = TakesVectors(args.rows) ? QuantizeFp8<In, true> : QuantizeFp8<In, false>;
    kernel<<<static_cast<unsigned>(args.rows.rows), kFp8RowThreads, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

cudaError_t LaunchScaleFp8(const Fp8SumsArgs& args, cudaStream_t stream) {
  if (args.out.rows == 0) return cudaSuccess;
  // Sums and scales of W begin where an allocation does, and their rows are whole pieces.
  const bool vectors = TakesVectors(args.out) && (args.bias == nullptr || IsAligned(args.bias));
  return WithElementType(args.out.dtype, [&](auto* type) {
    using Out = std::remove_pointer_t<decltype(type)>;
    const auto kernel = vectors ? ScaleFp8<Out, true> : ScaleFp8<Out, false>;
    kernel<<<static_cast<unsigned>(args.out.rows), 256, 0, stream>>>(args);
    return cudaGetLastError();
  });
}

cudaError_t LaunchFp8Skinny(const Fp8SkinnyArgs& args, bool early, cudaStream_t stream) {
  if (args.out.rows == 0 || args.out.cols == 0) return cudaSuccess;
  const auto kernel = args.out.rows <= 8 ? Fp8Product<1> : Fp8Product<2>;
  return LaunchBehind(early, kernel, static_cast<unsigned>(SkinnyTiles(args.out.cols)), kSkinnyThreads, 0,
                      stream, args);
}

}  // namespace aludel::cuda
