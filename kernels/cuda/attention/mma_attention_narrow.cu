#include "kernels/cuda/attention/mma_attention_launch.cuh"

namespace aludel::cuda {

cudaError_t LaunchNarrowMma(const AttentionArgs& args, int64_t units, bool decode, bool early,
                            cudaStream_t stream) {
  return args.kv.head_dim <= 64 ? LaunchMmaDim<64>(args, units, decode, early, stream)
                                : LaunchMmaDim<96>(args, units, decode, early, stream);
}

}  // namespace aludel::cuda
