#include "kernels/cuda/attention/mma_attention_launch.cuh"

namespace aludel::cuda {

cudaError_t LaunchWideMma(const AttentionArgs& args, int64_t units, bool decode, bool early,
                          cudaStream_t stream) {
  if (args.kv.head_dim <= 128) {
    return decode ? LaunchMmaShape<DecodeShape<128>>(args, units, early, stream)
                  : LaunchMmaShape<PrefillShape<128>>(args, units, early, stream);
  }
  return decode ? LaunchMmaShape<DecodeShape<256>>(args, units, early, stream)
                : LaunchMmaShape<PrefillShape<256>>(args, units, early, stream);
}

}  // namespace aludel::cuda
