#include "kernels/cuda/rope.cuh"

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

constexpr unsigned kThreads = 128;

template <typename T, bool kVectors>
__global__ void Rope(T* q, int64_t stride, int heads, int half, const float* inverse_frequency,
                     float attention_factor, SequenceTable table) {
  extern __shared__ float shared[];
  RotateToken<T, kVectors>(q, stride, heads, half, inverse_frequency, attention_factor, table, shared);
}

template <typename In, typename V, typename Page, bool kVectors>
__global__ void RopeWriteKv(const In* k, int64_t k_stride, const V* v, int64_t v_stride,
                            const float* inverse_frequency, float attention_factor, SequenceTable table,
                            KvPlanes kv, LayerRun run) {
  extern __shared__ float shared[];
  RotateAndWriteToken<In, V, Page, kVectors>(k, k_stride, v, v_stride, inverse_frequency, attention_factor,
                                             table, kv, run, shared);
}

// Whether all pages of all layers lie on 16 bytes, in heads whose halves are whole vectors.
bool TakesVectors(const KvPlanes& kv, const LayerRun& run) {
  return kv.head_dim / 2 % kVector == 0 && run.columns % kVector == 0 && run.page_bytes % 16 == 0 &&
         reinterpret_cast<uintptr_t>(kv.k) % 16 == 0 && reinterpret_cast<uintptr_t>(kv.v) % 16 == 0;
}

}  // namespace

cudaError_t LaunchRope(const TensorView& q, int head_dim, const float* inverse_frequency,
                       float attention_factor, const SequenceTable& table, cudaStream_t stream) {
  if (table.tokens == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(table.tokens);
  return WithElementType(q.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto kernel = TakesVectors(q) && head_dim / 2 % kVector == 0 ? Rope<T, true> : Rope<T, false>;
    kernel<<<grid, kThreads, head_dim * sizeof(float), stream>>>(
        static_cast<T*>(q.data), q.stride, static_cast<int>(q.cols / head_dim), head_dim / 2,
        inverse_frequency, attention_factor, table);
    return cudaGetLastError();
  });
}

cudaError_t LaunchRopeWriteKv(const TensorView& k, const TensorView& v, const float* inverse_frequency,
                              float attention_factor, const SequenceTable& table, const KvPlanes& kv,
                              const LayerRun& run, cudaStream_t stream) {
  if (table.tokens == 0) return cudaSuccess;
  const auto grid = static_cast<unsigned>(table.tokens);
  const bool vectors = TakesVectors(k) && TakesVectors(v) && TakesVectors(kv, run);
  return WithElementType(k.dtype, [&](auto* k_type) {
    return WithElementType(v.dtype, [&](auto* v_type) {
      return WithPageType(kv.dtype, [&](auto* page_type) {
        using In = std::remove_pointer_t<decltype(k_type)>;
        using V = std::remove_pointer_t<decltype(v_type)>;
        using Page = std::remove_pointer_t<decltype(page_type)>;
        const auto kernel = vectors ? RopeWriteKv<In, V, Page, true> : RopeWriteKv<In, V, Page, false>;
        kernel<<<grid, kThreads, kv.head_dim * sizeof(float), stream>>>(
            static_cast<const In*>(k.data), k.stride, static_cast<const V*>(v.data), v.stride,
            inverse_frequency, attention_factor, table, kv, run);
        return cudaGetLastError();
      });
    });
  });
}

}  // namespace aludel::cuda
