#include "kernels/cuda/attention/mma_attention_launch.cuh"

namespace aludel::cuda {
namespace {

constexpr int kCombineThreads = 128;

__global__ void __launch_bounds__(kCombineThreads)
    Combine(const __grid_constant__ AttentionArgs args, int queries) {
  CombineSplits(args, queries);
}

}  // namespace

int MmaPrefillQueries(int head_dim) {
  static_assert(PrefillShape<64>::kQueries == PrefillShape<128>::kQueries &&
                PrefillShape<96>::kQueries == PrefillShape<128>::kQueries);
  static_assert(DecodeShape<64>::kQueries == kMmaDecodeQueries &&
                DecodeShape<256>::kQueries == kMmaDecodeQueries);
  static_assert(PrefillShape<64>::kKeys <= kMmaKeyTile && DecodeShape<64>::kKeys <= kMmaKeyTile);
  return head_dim <= 128 ? PrefillShape<128>::kQueries : PrefillShape<256>::kQueries;
}

cudaError_t LaunchMmaAttention(const AttentionArgs& args, int64_t units, bool decode, bool early,
                               cudaStream_t stream) {
  if (units == 0) return cudaSuccess;
  return args.kv.head_dim <= 96 ? LaunchNarrowMma(args, units, decode, early, stream)
                                : LaunchWideMma(args, units, decode, early, stream);
}

cudaError_t LaunchCombineSplits(const AttentionArgs& args, int64_t tiles, int queries, int most,
                                cudaStream_t stream) {
  if (tiles == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(args.kv.kv_heads),
                  static_cast<unsigned>(most));
  Combine<<<grid, kCombineThreads, 0, stream>>>(args, queries);
  return cudaGetLastError();
}

}  // namespace aludel::cuda
