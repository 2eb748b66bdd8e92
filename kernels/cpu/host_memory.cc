#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace aludel {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return std::max<size_t>(1, (bytes + unit - 1) / unit) * unit; }

}  // namespace

HostMemory AllocateHostMemory(size_t bytes) {
  if (bytes < kHugePage) return HostMemory(std::aligned_alloc(kCacheLine, RoundUp(bytes, kCacheLine)));
  const size_t rounded = RoundUp(bytes, kHugePage);
  HostMemory memory(std::aligned_alloc(kHugePage, rounded));
  if (memory != nullptr) ::madvise(memory.get(), rounded, MADV_HUGEPAGE);  // a wish
  return memory;
}

}  // namespace aludel
