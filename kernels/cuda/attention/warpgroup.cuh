#pragma once

#include <cstdint>

#include "kernels/cuda/warp.cuh"

// What Hopper adds to warp.cuh: products of a warpgroup (four warps, the first one's number a multiple of
// four), barriers in shared memory, and how many registers a warp has. All of it is sm_90a's. As there, tests supply
// these names for the host: tests/kernels/cuda/simt_warpgroup.h.
namespace aludel::cuda {

constexpr int kWarpgroupThreads = 128;

#ifdef __CUDACC__

// 16 bytes that FenceProxyAsync shall publish.
__device__ inline void StoreShared(void* shared, const uint4& value) { *static_cast<uint4*>(shared) = value; }

// Makes what this thread has written to shared memory, also by a CpAsync16 that has come, visible to the
// matrix units. Others' products may read it once they have met this thread at a barrier.
__device__ inline void FenceProxyAsync() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A barrier of `arrivals` arrivals per phase. All threads meet before another one uses it.
__device__ inline void BarrierInit(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)), "r"(arrivals)
               : "memory");
}
__device__ inline void BarrierArrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
// Until the phase of this parity is over. The first phase is 0, and before it one of parity 1 was over.
__device__ inline void BarrierWait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@over bra done;\n"
      "bra again;\n"
      "done:\n"
      "}" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

// The block's numbered barriers, of which 0 is __syncthreads. kThreads: those
// that wait and those that only arrive.
template <int kThreads>
__device__ inline void NumberedSync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ inline void NumberedArrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

// The warpgroup's registers per thread from here on: fewer, or more once others have given them up.
template <int kRegisters>
__device__ inline void LowerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void RaiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Keeps the compiler from moving what it does with registers across this point.
template <int kCount>
__device__ inline void Pin(float (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+f"(registers[i][j])::"memory");
  }
}
template <int kCount>
__device__ inline void Pin(uint32_t (&registers)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) asm volatile("" : "+r"(registers[i][j])::"memory");
  }
}

// Between the last use of registers by the program and products that use them, unless the registers are the
// sums of products under way. `registers`: all that the program has used since.
template <typename... Registers>
__device__ inline void WgmmaFence(Registers&... registers) {
  (Pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a group of products.
__device__ inline void WgmmaCommit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all groups but the last kPending are done, whose `registers` the program may use again.
template <int kPending, typename... Registers>
__device__ inline void WgmmaWait(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  (Pin(registers), ...);
}

// Operands of an accumulator of 64 or 128 columns.
#define ALUDEL_ROW(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define ALUDEL_ROWS(d, i) ALUDEL_ROW(d, i), ALUDEL_ROW(d, i + 1), ALUDEL_ROW(d, i + 2), ALUDEL_ROW(d, i + 3)
#define ALUDEL_NAMES_64                                                                       \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19," \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ALUDEL_NAMES_128                                                                   \
  ALUDEL_NAMES_64                                                                          \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48," \
  "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d [64, 128] = a b, or += a b where `accumulate`: bf16 factors, f32 sums. Descriptors of a [64, 16] and b
// [128, 16], rows by dimensions. A warp's 16 rows of d lie in its lanes as 16 results of mma_index.h (PTX
// ISA, "Matrix Fragments for wgmma.mma_async.m64nNk16"; CLayout_64xN and, for A, ALayout_64x16 in CUTLASS).
__device__ inline void WgmmaShared(float (&d)[16][4], uint64_t a, uint64_t b, bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.ne.b32 accumulate, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ALUDEL_NAMES_128
      "}, %64, %65, accumulate, 1, 1, 0, 0;\n"
      "}"
      : ALUDEL_ROWS(d, 0), ALUDEL_ROWS(d, 4), ALUDEL_ROWS(d, 8), ALUDEL_ROWS(d, 12)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate))
      : "memory");
}

// d [64, 64 or 128] += a b: a [64, 16] in registers, a warp's 16 rows as an A of mma_index.h; the descriptor
// of b [16, 64 or 128], dimensions by rows. `a` stays as it is until the product is done.
__device__ inline void WgmmaRegisters(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ALUDEL_NAMES_64
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
               : ALUDEL_ROWS(d, 0), ALUDEL_ROWS(d, 4)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
               : "memory");
}
__device__ inline void WgmmaRegisters(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ALUDEL_NAMES_128
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : ALUDEL_ROWS(d, 0), ALUDEL_ROWS(d, 4), ALUDEL_ROWS(d, 8), ALUDEL_ROWS(d, 12)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
               : "memory");
}

#undef ALUDEL_ROW
#undef ALUDEL_ROWS
#undef ALUDEL_NAMES_64
#undef ALUDEL_NAMES_128

#endif

}  // namespace aludel::cuda
