#pragma once

#include <initializer_list>

#include "tests/kernels/cuda/simt.h"

// kernels/cuda/warpgroup.cuh for the host; include it where simt.h is included for warp.cuh. Everything
// asynchronous happens as late as the program allows, and what it touches is undefined until then:
//
// * A product takes its operands and gives its sums when WgmmaWait says so, at which a warp may linger until
//   nobody else gets any further; until then its accumulators read NaN. Its operands in shared memory are
//   also looked at when it begins, and a change in between ends the test. Descriptors are decoded from their
//   bits. The program has to have named every register that it has touched to WgmmaFence, unchanged since,
//   and to name the accumulators that it waits for to WgmmaWait: on a GPU that is what keeps the compiler
//   from using them too early.
// * Products see shared memory as the async proxy does: NaN, until the thread that has written to it calls
//   FenceProxyAsync; from the moment that an asynchronous copy begins what it overwrites is NaN again.
// * A thread that waits at a barrier for a phase that never ends, or at a numbered barrier for threads that
//   never come, ends the test, as does a barrier that was not initialized and, at the end, an arrival
//   that nobody has waited for.
//
// Not simulated: setmaxnreg, and sharing of a fence with others (a fence helps what its own thread wrote).
namespace aludel::cuda {

namespace simt {

struct Registers {
  const void* begin;
  size_t bytes;
};
void FenceRegisters(std::initializer_list<Registers> registers);
void WaitForProducts(int pending, std::initializer_list<Registers> registers);
void Numbered(int id, int threads, bool wait);
void StartProduct(float* d, int columns, bool accumulate, const uint32_t* a, uint64_t a_matrix,
                  uint64_t b_matrix, bool transposed);

}  // namespace simt

uint32_t SharedAddress(const void* shared);
void StoreShared(void* shared, const uint4& value);
void FenceProxyAsync();

void BarrierInit(uint64_t* barrier, int arrivals);
void BarrierArrive(uint64_t* barrier);
void BarrierWait(uint64_t* barrier, uint32_t parity);
template <int kThreads>
void NumberedSync(int id) {
  simt::Numbered(id, kThreads, /*wait=*/true);
}
template <int kThreads>
void NumberedArrive(int id) {
  simt::Numbered(id, kThreads, /*wait=*/false);
}

template <int kRegisters>
void LowerRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
void RaiseRegisters() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}

template <typename... Registers>
void WgmmaFence(Registers&... registers) {
  simt::FenceRegisters({simt::Registers{registers, sizeof(registers)}...});
}
void WgmmaCommit();
template <int kPending, typename... Registers>
void WgmmaWait(Registers&... registers) {
  simt::WaitForProducts(kPending, {simt::Registers{registers, sizeof(registers)}...});
}
template <int kCount>
void WgmmaShared(float (&d)[kCount][4], uint64_t a, uint64_t b, bool accumulate) {
  simt::StartProduct(d[0], kCount * 8, accumulate, nullptr, a, b, /*transposed=*/false);
}
template <int kCount>
void WgmmaRegisters(float (&d)[kCount][4], const uint32_t (&a)[4], uint64_t b) {
  simt::StartProduct(d[0], kCount * 8, /*accumulate=*/true, a, 0, b, /*transposed=*/true);
}

}  // namespace aludel::cuda
