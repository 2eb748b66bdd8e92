#pragma once

#include <cstdint>

#include "kernels/cuda/element.cuh"

// What the blocks of one launch do for each other. Pieces of work are claimed with atomicInc, whose wrap leaves the counter at
// zero for the next launch; a piece that is done is counted, and a block that needs all of them waits for the count. A block may
// wait only when all pieces are claimed, and does what it has claimed before it waits: so each block that is waited for runs,
// however few of the launch's blocks run at once. Tests compile kernels for the host: there tests/kernels/cuda/simt.h supplies these.
namespace aludel::cuda {

#ifdef __CUDACC__

// Stores a number and counts it.
__device__ inline void StoreCounted(float* to, float value, uint32_t* counter) {
  *to = value;
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// Until the counter is `count`: what was counted is there then, for the block's other threads behind a barrier. By one thread.
__device__ inline void AwaitCount(const uint32_t* counter, uint32_t count) {
  uint32_t found;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
  } while (found != count);
}

// Asks for the 32 bytes of global memory that it is among to be in the second-level cache.
__device__ inline void Prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

#endif

}  // namespace aludel::cuda
