#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

// Runs the bodies of CUDA kernels on the host, so that a machine without a GPU holds them against a
// reference: include this first, then the kernel's .cuh. Every thread of a block is a fiber. Warps advance in
// a random order, and all the lanes of one must meet at each of its collective instructions; what those do is
// written here from the tables of the PTX ISA, not from the index functions that kernels use. An asynchronous
// copy happens only when somebody waits for it, and what it will overwrite is NaN from its beginning on, so
// that a kernel which forgets to wait reads NaN: shared memory starts as NaN. A mistake that would hang or
// corrupt a GPU (divergence at a collective, a barrier that not everyone reaches, copies that nobody waited
// for, a misaligned address) ends the test with a message. What is stored and counted for other blocks is NaN in each block
// until one of its threads has waited for the count.
//
// Built with ThreadSanitizer it is a race detector, see races.h.
//
// Not simulated: memory models within a warp, the rounding of tensor cores' sums, speed.
namespace aludel::cuda::simt {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// Runs `body` in every thread of every block, blocks one after another in a random order, with `shared_bytes` of
// shared memory whose address it gets. `seed` orders blocks and warps.
void Launch(Dim3 grid, Dim3 block, size_t shared_bytes, uint64_t seed,
            const std::function<void(char* shared)>& body);

// As Launch, for kernels whose threads never meet: no barrier, no collective. They run one after the other, without fibers.
void LaunchAlone(Dim3 grid, Dim3 block, const std::function<void(char* shared)>& body);

// Of the running thread.
const Dim3& ThreadIndex();
const Dim3& BlockIndex();
const Dim3& BlockSize();
const Dim3& GridSize();

void SyncThreads();

// Waits until every lane of the warp is here with the same `name` and then runs `work` once, given what the
// lanes passed as `operands`, in lane order.
using WarpWork = void (*)(void* const* operands);
void Collective(const char* name, WarpWork work, void* operands);

// Exchanges lanes' values: lane i gets that of lane source(i).
template <typename T>
T Exchange(const char* name, T value, int source) {
  struct Operands {
    T value;
    int source;
    T result;
  };
  Operands mine{value, source, value};
  // Registers meet here, which no race is about.
  const WarpWork work = [](void* const* lanes) __attribute__((no_sanitize("thread"))) {
    for (int lane = 0; lane < 32; ++lane) {
      auto& own = *static_cast<Operands*>(lanes[lane]);
      own.result = static_cast<Operands*>(lanes[own.source % 32])->value;
    }
  };
  Collective(name, work, &mine);
  return mine.result;
}

int Lane();

// Calls of __threadfence since the last launch began, by all of its threads.
void Fence();
uint64_t FenceCount();
// Calls of AwaitEarlier since the last launch began, and one of AllowNext. What the next kernel awaits is the end of this one alone:
// one that lets it begin has to have awaited those in front, in all threads of every block that works, or the test ends.
void Await();
void Allow();
uint64_t AwaitCount();
// Before an atomic addition. One to global memory tells other blocks that what this one leaves them is there: each of its
// threads has to have fenced that.
void CheckAddition(const void* address);

}  // namespace aludel::cuda::simt

// CUDA's words.
#define __device__
#define __global__
#define threadIdx (::aludel::cuda::simt::ThreadIndex())
#define blockIdx (::aludel::cuda::simt::BlockIndex())
#define blockDim (::aludel::cuda::simt::BlockSize())
#define gridDim (::aludel::cuda::simt::GridSize())
#define __syncthreads() (::aludel::cuda::simt::SyncThreads())
#define __syncwarp()                 \
  (::aludel::cuda::simt::Collective( \
      "syncwarp", [](void* const*) {}, nullptr))
#define __shfl_sync(mask, value, lane) (::aludel::cuda::simt::Exchange("shfl", value, lane))
#define __shfl_xor_sync(mask, value, bits) \
  (::aludel::cuda::simt::Exchange("shfl_xor", value, ::aludel::cuda::simt::Lane() ^ (bits)))

namespace aludel::cuda {

struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

inline uint32_t atomicAdd(uint32_t* address, uint32_t value) {
  simt::CheckAddition(address);
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
}
// Blocks run one after another, so that it orders nothing here.
inline void __threadfence() { simt::Fence(); }
// A claim, which tells other blocks nothing.
inline uint32_t atomicInc(uint32_t* address, uint32_t last) {
  const uint32_t old = __atomic_load_n(address, __ATOMIC_RELAXED);
  __atomic_store_n(address, old >= last ? 0 : old + 1, __ATOMIC_RELAXED);
  return old;
}
inline float __uint_as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline float __fdividef(float a, float b) { return a / b; }
inline uint32_t __float_as_uint(float value) { return __builtin_bit_cast(uint32_t, value); }
using std::fmaxf;
using std::max;

// As declared in kernels/cuda/warp.cuh.
void CpAsync16(void* shared, const void* global, bool there);
void CpAsyncCommit();
void CpAsyncWaitFor(int pending);
template <int kPending>
void CpAsyncWait() {
  CpAsyncWaitFor(kPending);
}
void LdMatrix(uint32_t (&to)[4], const void* row);
void LdMatrixTransposed(uint32_t (&to)[4], const void* row);
void Mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
void MmaInt8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
uint32_t PackBf16(float first, float second);
uint32_t MultiplyBf16(uint32_t a, uint32_t b);
inline uint32_t ChooseBytes(uint32_t bytes, uint32_t choice) {
  uint32_t chosen = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = choice >> 4 * i & 0xf;
    if (from < 4) chosen |= (bytes >> 8 * from & 0xff) << 8 * i;
  }
  return chosen;
}
uint4 LoadOnce(const void* global);
// As declared in kernels/cuda/grid_count.cuh. What is asked for is read, so that it must be there.
inline void Prefetch(const void* address) { static_cast<void>(*static_cast<const volatile char*>(address)); }
void StoreCounted(float* to, float value, uint32_t* counter);
void AwaitCount(const uint32_t* counter, uint32_t count);
// Launches run one after another, so that there is nothing to wait for: only that it is waited for is seen.
inline void AwaitEarlier() { simt::Await(); }
inline void AllowNext() { simt::Allow(); }
inline float Exp2(float x) { return std::exp2(x); }

}  // namespace aludel::cuda
