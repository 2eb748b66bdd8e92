#pragma once

// What orders memory in a simulated block, said to ThreadSanitizer. Fibers are switched without synchronization, and simt's
// own files are not instrumented (ALUDEL_RACES there says that the rest is), so that every access of a kernel to memory that
// it shares without a barrier between is a report: shuffles and products of matrices exchange registers and order nothing.
// Asynchronous copies write when they are issued, matrices are read where a lane names a row. Blocks are ordered here, as
// they run one after the other.
#if defined(ALUDEL_RACES)
#include <sanitizer/tsan_interface.h>

extern "C" {
void __tsan_read16(void* address);   // NOLINT: the sanitizer's own names
void __tsan_write16(void* address);  // NOLINT
}
#endif

namespace aludel::cuda::simt {

// Everything before a release of an address is before what follows an acquire of it.
inline void Release([[maybe_unused]] const void* sync) {
#if defined(ALUDEL_RACES)
  __tsan_release(const_cast<void*>(sync));
#endif
}
inline void Acquire([[maybe_unused]] const void* sync) {
#if defined(ALUDEL_RACES)
  __tsan_acquire(const_cast<void*>(sync));
#endif
}

// Accesses of 16 bytes by the running thread.
inline void Reads16([[maybe_unused]] const void* address) {
#if defined(ALUDEL_RACES)
  __tsan_read16(const_cast<void*>(address));
#endif
}
inline void Writes16([[maybe_unused]] void* address) {
#if defined(ALUDEL_RACES)
  __tsan_write16(address);
#endif
}

}  // namespace aludel::cuda::simt
