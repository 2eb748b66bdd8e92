#pragma once

#include <cuda_runtime.h>

namespace aludel::cuda {

// kernel<<<grid, threads, shared_bytes, stream>>>(args...). `early`: it may begin before the kernel in front of it on the
// stream has ended, which compute capability 9.0 can; the kernel calls AwaitEarlier, see warp.cuh.
template <typename... Params, typename... Args>
cudaError_t LaunchBehind(bool early, void (*kernel)(Params...), dim3 grid, int threads, size_t shared_bytes,
                         cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace aludel::cuda
