#include "kernels/cuda/sample.cuh"

#include "kernels/cuda/launch.h"

namespace aludel::cuda {
namespace {

__global__ void __launch_bounds__(kSampleThreads) Sample(const __grid_constant__ SampleArgs args) {
  __shared__ SampleShared shared;
  SampleRowOf(args, &shared);
}

}  // namespace

cudaError_t LaunchSampleRows(const TensorView& logits, const DrawTerms* terms, int32_t* tokens,
                             cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  const SampleArgs args{logits.f32(), logits.stride, static_cast<int>(logits.cols), terms, tokens};
  Sample<<<static_cast<unsigned>(logits.rows), kSampleThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace aludel::cuda
