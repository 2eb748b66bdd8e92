#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.h"

// Bound by memory. One block per row, so that nothing here divides and columns are read in order.

namespace aludel::cuda {
namespace {

unsigned ThreadsFor(int64_t cols) { return cols >= 1024 ? 256 : 64; }

template <typename Src, typename Dst, typename Index>
__global__ void CopyRows(const Src* src, int64_t src_stride, const Index* rows, Dst* dst, int64_t dst_stride,
                         int64_t cols) {
  const int64_t row = blockIdx.x;
  src += (rows == nullptr ? row : static_cast<int64_t>(rows[row])) * src_stride;
  dst += row * dst_stride;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) Store(dst + c, Load(src + c));
}

template <typename In, typename Out>
__global__ void SiluMul(const In* gate_up, int64_t in_stride, Out* out, int64_t out_stride, int64_t cols) {
  const int64_t row = blockIdx.x;
  gate_up += row * in_stride;
  out += row * out_stride;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    // sigmoid through exp(-|g|), which cannot overflow.
    const float g = Load(gate_up + c);
    const float e = expf(-fabsf(g));
    const float sigmoid = (g < 0.0f ? e : 1.0f) / (1.0f + e);
    Store(out + c, g * sigmoid * Load(gate_up + cols + c));
  }
}

template <typename Index>
cudaError_t Copy(const TensorView& src, const Index* rows, const TensorView& dst, cudaStream_t stream) {
  if (dst.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(dst.rows);
  return WithElementType(src.dtype, [&](auto* src_type) {
    return WithElementType(dst.dtype, [&](auto* dst_type) {
      CopyRows<<<grid, ThreadsFor(dst.cols), 0, stream>>>(
          static_cast<decltype(src_type)>(src.data), src.stride, rows,
          static_cast<decltype(dst_type)>(dst.data), dst.stride, dst.cols);
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

cudaError_t LaunchSiluMul(const TensorView& gate_up, const TensorView& out, cudaStream_t stream) {
  if (out.rows == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(out.rows);
  return WithElementType(gate_up.dtype, [&](auto* in_type) {
    return WithElementType(out.dtype, [&](auto* out_type) {
      SiluMul<<<grid, ThreadsFor(out.cols), 0, stream>>>(
          static_cast<decltype(in_type)>(gate_up.data), gate_up.stride,
          static_cast<decltype(out_type)>(out.data), out.stride, out.cols);
      return cudaGetLastError();
    });
  });
}

}  // namespace aludel::cuda
