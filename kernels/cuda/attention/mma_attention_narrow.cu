#include "kernels/cuda/attention/mma_attention_launch.cuh"

namespace aludel::cuda {

cudaError_t LaunchNarrowMma(const AttentionArgs& args, int64_t units, bool decode, bool early,
                            cudaStream_t stream) {
  if (args.kv.head_dim <= 64) {
    return decode ? LaunchMmaShape<DecodeShape<64>>(args, units, early, stream)
                  : LaunchMmaShape<PrefillShape<64>>(args, units, early, stream);
  }
  return decode ? LaunchMmaShape<DecodeShape<96>>(args, units, early, stream)
                : LaunchMmaShape<PrefillShape<96>>(args, units, early, stream);
}

}  // namespace aludel::cuda
