#include "kernels/cuda/attention/scalar_attention.cuh"

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

template <typename In, typename Out, typename Page, int kQueries, int kDims>
__global__ void __launch_bounds__(kScalarWarps * 32)
    Attention(const In* q, int64_t q_stride, Out* out, int64_t out_stride, float scale, int64_t window,
              SequenceTable table, QueryTiling tiling, const int64_t* first_tile, KvPlanes kv) {
  extern __shared__ float4 shared4[];
  AttendTile<In, Out, Page, kQueries, kDims>(q, q_stride, out, out_stride, scale, window, table, tiling,
                                             first_tile, kv, shared4);
}

// Queries per warp of a prefill tile. Decode tiles that fit kScalarWarps queries use one per warp.
constexpr int kPrefillQueries = 8;

template <typename In, typename Out, typename Page, int kQueries, int kDims>
cudaError_t LaunchTyped(const TensorView& q, float scale, int64_t window, const SequenceTable& table,
                        const QueryTiling& tiling, const int64_t* first_tile, int64_t tiles,
                        const KvPlanes& kv, const TensorView& out, cudaStream_t stream) {
  const auto kernel = Attention<In, Out, Page, kQueries, kDims>;
  const size_t shared = ScalarSharedBytes(kScalarWarps * kQueries, kv.head_dim);
  // Past 48 KiB a kernel has to ask. The attribute belongs to the function, so concurrent calls set it to the
  // most that any head size takes, not to what this call needs.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(ScalarSharedBytes(kScalarWarps * kQueries, kDims * 32)));
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(kv.kv_heads));
  kernel<<<grid, kScalarWarps * 32, shared, stream>>>(static_cast<const In*>(q.data), q.stride,
                                                      static_cast<Out*>(out.data), out.stride, scale, window,
                                                      table, tiling, first_tile, kv);
  return cudaGetLastError();
}

}  // namespace

QueryTiling ScalarAttentionTiling(int group, int64_t longest) {
  const bool few = group * longest <= kScalarWarps;
  return MakeQueryTiling(group, few ? kScalarWarps : kScalarWarps * kPrefillQueries);
}

cudaError_t LaunchScalarAttention(const TensorView& q, float scale, int64_t window,
                                  const SequenceTable& table, const QueryTiling& tiling,
                                  const int64_t* first_tile, int64_t tiles, const KvPlanes& kv,
                                  const TensorView& out, cudaStream_t stream) {
  if (tiles == 0) return cudaSuccess;
  const bool few = tiling.rows_per_tile * tiling.chunk_heads <= kScalarWarps;
  const bool narrow = kv.head_dim <= 128;
  return WithElementType(q.dtype, [&](auto* in_type) {
    return WithElementType(out.dtype, [&](auto* out_type) {
      return WithPageType(kv.dtype, [&](auto* page_type) {
        using In = std::remove_pointer_t<decltype(in_type)>;
        using Out = std::remove_pointer_t<decltype(out_type)>;
        using Page = std::remove_pointer_t<decltype(page_type)>;
        const auto launch =
            few ? (narrow ? LaunchTyped<In, Out, Page, 1, 4> : LaunchTyped<In, Out, Page, 1, 8>)
                : (narrow ? LaunchTyped<In, Out, Page, kPrefillQueries, 4>
                          : LaunchTyped<In, Out, Page, kPrefillQueries, 8>);
        return launch(q, scale, window, table, tiling, first_tile, tiles, kv, out, stream);
      });
    });
  });
}

}  // namespace aludel::cuda
