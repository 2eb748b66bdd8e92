#include "tests/bench/counted_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> live_bytes = 0;
std::atomic<int64_t> peak_bytes = 0;

void* Count(void* memory) {
  if (memory == nullptr) std::abort();
  const int64_t live = live_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  int64_t peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {
  }
  return memory;
}

void Uncount(void* memory) {
  if (memory != nullptr) live_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) { return Count(std::malloc(size)); }
void* operator new[](size_t size) { return Count(std::malloc(size)); }
void operator delete(void* memory) noexcept { Uncount(memory); }
void operator delete[](void* memory) noexcept { Uncount(memory); }
void operator delete(void* memory, size_t) noexcept { Uncount(memory); }
void operator delete[](void* memory, size_t) noexcept { Uncount(memory); }

namespace aludel {

int64_t LiveBytes() { return live_bytes; }
int64_t PeakBytes() { return peak_bytes; }
void RestartPeak() { peak_bytes = live_bytes.load(); }

}  // namespace aludel
