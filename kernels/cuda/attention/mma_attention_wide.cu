#include "kernels/cuda/attention/mma_attention_launch.cuh"

namespace aludel::cuda {

cudaError_t LaunchWideMma(const AttentionArgs& args, int64_t units, bool decode, bool early,
                          cudaStream_t stream) {
  return args.kv.head_dim <= 128 ? LaunchMmaDim<128>(args, units, decode, early, stream)
                                 : LaunchMmaDim<256>(args, units, decode, early, stream);
}

}  // namespace aludel::cuda
