#pragma once

// What orders memory in a simulated block, said to ThreadSanitizer. Fibers are switched without synchronization, and simt's
// own files are not instrumented (ALUDEL_RACES there says that the rest is), so that every access of a kernel to memory that
// it shares without a barrier between is a report: shuffles and products of matrices exchange registers and order nothing.
// Asynchronous copies write when they are issued, matrices are read where a lane names a row, and a warpgroup's product reads its
// operands both when it begins and when it has been waited for. Blocks
// are ordered here, as they run one after the other.
#if defined(ALUDEL_RACES)
#include <sanitizer/tsan_interface.h>

extern "C" {
void __tsan_write4(void* address);   // NOLINT: the sanitizer's own names
void __tsan_read16(void* address);   // NOLINT
void __tsan_write16(void* address);  // NOLINT
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace aludel::cuda::simt {

#if defined(ALUDEL_RACES)
constexpr bool kSeesRaces = true;
#else
constexpr bool kSeesRaces = false;
#endif

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

// Of a number.
inline void Writes4([[maybe_unused]] void* address) {
#if defined(ALUDEL_RACES)
  __tsan_write4(address);
#endif
}

// While one lives, what its fiber does is the simulator's own: the standard library's functions are looked at where a test
// has compiled them, too, and so are copies and allocations.
struct Unseen {
#if defined(ALUDEL_RACES)
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Unseen() {}
#endif
};

}  // namespace aludel::cuda::simt
