#include "kernels/cuda/rope.cuh"

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

constexpr unsigned kThreads = 128;

template <typename T>
__global__ void Rope(T* q, int64_t stride, int heads, int half, const float* inverse_frequency,
                     float attention_factor, SequenceTable table) {
  extern __shared__ float shared[];
  RotateToken(q, stride, heads, half, inverse_frequency, attention_factor, table, shared);
}

template <typename In, typename V, typename Page>
__global__ void RopeWriteKv(const In* k, int64_t k_stride, const V* v, int64_t v_stride,
                            const float* inverse_frequency, float attention_factor, SequenceTable table,
                            KvPlanes kv) {
  extern __shared__ float shared[];
  RotateAndWriteToken<In, V, Page>(k, k_stride, v, v_stride, inverse_frequency, attention_factor, table, kv,
                                   shared);
}

}  // namespace

cudaError_t LaunchRope(const TensorView& q, int head_dim, const float* inverse_frequency,
                       float attention_factor, const SequenceTable& table, cudaStream_t stream) {
  if (table.tokens == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(table.tokens);
  return WithElementType(q.dtype, [&](auto* type) {
    Rope<<<grid, kThreads, head_dim * sizeof(float), stream>>>(
        static_cast<decltype(type)>(q.data), q.stride, static_cast<int>(q.cols / head_dim), head_dim / 2,
        inverse_frequency, attention_factor, table);
    return cudaGetLastError();
  });
}

cudaError_t LaunchRopeWriteKv(const TensorView& k, const TensorView& v, const float* inverse_frequency,
                              float attention_factor, const SequenceTable& table, const KvPlanes& kv,
                              cudaStream_t stream) {
  if (table.tokens == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(table.tokens);
  return WithElementType(k.dtype, [&](auto* k_type) {
    return WithElementType(v.dtype, [&](auto* v_type) {
      return WithPageType(kv.dtype, [&](auto* page_type) {
        using In = std::remove_pointer_t<decltype(k_type)>;
        using V = std::remove_pointer_t<decltype(v_type)>;
        using Page = std::remove_pointer_t<decltype(page_type)>;
        RopeWriteKv<In, V, Page><<<grid, kThreads, kv.head_dim * sizeof(float), stream>>>(
            static_cast<const In*>(k.data), k.stride, static_cast<const V*>(v.data), v.stride,
            inverse_frequency, attention_factor, table, kv);
        return cudaGetLastError();
      });
    });
  });
}

}  // namespace aludel::cuda
