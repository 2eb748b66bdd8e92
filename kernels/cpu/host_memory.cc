#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace aludel {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
// Of HostSlabs: what a piece that stays keeps from being freed, at most.
constexpr size_t kSlabBytes = 2 * kHugePage;

size_t RoundUp(size_t bytes, size_t unit) { return std::max<size_t>(1, (bytes + unit - 1) / unit) * unit; }

// Whole huge pages, fresh from the kernel: memory that the heap has had before keeps its small pages. Null where there are none.
std::shared_ptr<void> MapHugePages(size_t bytes) {
  const size_t mapped = bytes + kHugePage;  // the kernel aligns to a small page
  void* const begin = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED) return nullptr;
  std::shared_ptr<void> mapping(begin, [mapped](void* memory) { ::munmap(memory, mapped); });
  const auto address = reinterpret_cast<uintptr_t>(begin);
  char* const aligned = static_cast<char*>(begin) + (RoundUp(address, kHugePage) - address);
  ::madvise(aligned, bytes, MADV_HUGEPAGE);  // a wish
  return {std::move(mapping), aligned};
}

}  // namespace

HostMemory AllocateHostMemory(size_t bytes) {
  if (bytes < kHugePage) return HostMemory(std::aligned_alloc(kCacheLine, RoundUp(bytes, kCacheLine)));
  const size_t rounded = RoundUp(bytes, kHugePage);
  HostMemory memory(std::aligned_alloc(kHugePage, rounded));
  if (memory != nullptr) ::madvise(memory.get(), rounded, MADV_HUGEPAGE);  // a wish
  return memory;
}

std::shared_ptr<void> HostSlabs::Allocate(size_t bytes) {
  const size_t size = RoundUp(bytes, kCacheLine);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<void> slab = latest_.lock();
  if (slab == nullptr || used_ + size > kSlabBytes) {
    slab = MapHugePages(RoundUp(std::max(size, kSlabBytes), kHugePage));
    if (slab == nullptr) return nullptr;
    latest_ = slab;
    used_ = 0;
  }
  void* const piece = static_cast<char*>(slab.get()) + used_;
  used_ += size;
  return {std::move(slab), piece};
}

}  // namespace aludel
