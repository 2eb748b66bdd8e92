#include "kernels/cuda/elementwise.cuh"

#include <type_traits>

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

unsigned ThreadsFor(int64_t cols) { return cols >= 1024 ? 256 : 64; }

template <typename Src, typename Dst, typename Index, bool kVectors>
__global__ void CopyRows(const Src* src, int64_t src_stride, const Index* rows, Dst* dst, int64_t dst_stride,
                         int64_t cols) {
  CopyRow<Src, Dst, Index, kVectors>(src, src_stride, rows, dst, dst_stride, cols);
}

template <bool kVectors>
__global__ void AddBias(const float* sums, int64_t sums_stride, const float* bias, Bf16* out,
                        int64_t out_stride, int64_t cols) {
  AddBiasToRow<kVectors>(sums, sums_stride, bias, out, out_stride, cols);
}

__global__ void AddTo(double* sums, const float* x, int64_t stride, int64_t cols) {
  AddRowTo(sums, x, stride, cols);
}

template <typename In, typename Out, bool kVectors>
__global__ void Silu(const In* x, int64_t in_stride, Out* out, int64_t out_stride, int64_t cols, bool gated) {
  SiluRow<In, Out, kVectors>(x, in_stride, out, out_stride, cols, gated);
}

template <typename Index>
cudaError_t Copy(const TensorView& src, const Index* rows, const TensorView& dst, cudaStream_t stream) {
  if (dst.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(dst.rows);
  return WithElementType(src.dtype, [&](auto* src_type) {
    return WithElementType(dst.dtype, [&](auto* dst_type) {
      using Src = std::remove_pointer_t<decltype(src_type)>;
      using Dst = std::remove_pointer_t<decltype(dst_type)>;
      const auto kernel = TakesVectors(src) && TakesVectors(dst) ? CopyRows<Src, Dst, Index, true>
                                                                 : CopyRows<Src, Dst, Index, false>;
      kernel<<<grid, ThreadsFor(dst.cols), 0, stream>>>(static_cast<const Src*>(src.data), src.stride, rows,
                                                        static_cast<Dst*>(dst.data), dst.stride, dst.cols);
      return cudaGetLastError();
    });
  });
}

cudaError_t LaunchSilu(const TensorView& x, const TensorView& out, bool gated, cudaStream_t stream) {
  if (out.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(out.rows);
  return WithElementType(x.dtype, [&](auto* in_type) {
    return WithElementType(out.dtype, [&](auto* out_type) {
      using In = std::remove_pointer_t<decltype(in_type)>;
      using Out = std::remove_pointer_t<decltype(out_type)>;
      const auto kernel = TakesVectors(x) && TakesVectors(out) ? Silu<In, Out, true> : Silu<In, Out, false>;
      kernel<<<grid, ThreadsFor(out.cols), 0, stream>>>(
          static_cast<const In*>(x.data), x.stride, static_cast<Out*>(out.data), out.stride, out.cols, gated);
      return cudaGetLastError();
    });
  });
}

}  // namespace

cudaError_t LaunchCopyRows(const TensorView& src, const int32_t* rows, const TensorView& dst,
                           cudaStream_t stream) {
  return Copy(src, rows, dst, stream);
}

cudaError_t LaunchCopyRows(const TensorView& src, const int64_t* rows, const TensorView& dst,
                           cudaStream_t stream) {
  return Copy(src, rows, dst, stream);
}

cudaError_t LaunchAddBias(const TensorView& sums, const float* bias, const TensorView& out,
                          cudaStream_t stream) {
  if (out.rows == 0) return cudaSuccess;
  const bool vectors = TakesVectors(sums) && TakesVectors(out) && reinterpret_cast<uintptr_t>(bias) % 16 == 0;
  const auto kernel = vectors ? AddBias<true> : AddBias<false>;
  kernel<<<static_cast<unsigned>(out.rows), ThreadsFor(out.cols), 0, stream>>>(
      sums.f32(), sums.stride, bias, static_cast<Bf16*>(out.data), out.stride, out.cols);
  return cudaGetLastError();
}

cudaError_t LaunchAddTo(double* sums, const TensorView& x, cudaStream_t stream) {
  if (x.rows == 0) return cudaSuccess;
  AddTo<<<static_cast<unsigned>(x.rows), ThreadsFor(x.cols), 0, stream>>>(sums, x.f32(), x.stride, x.cols);
  return cudaGetLastError();
}

cudaError_t LaunchSiluMul(const TensorView& gate_up, const TensorView& out, cudaStream_t stream) {
  return LaunchSilu(gate_up, out, /*gated=*/true, stream);
}

cudaError_t LaunchSilu(const TensorView& x, const TensorView& out, cudaStream_t stream) {
  return LaunchSilu(x, out, /*gated=*/false, stream);
}

}  // namespace aludel::cuda
