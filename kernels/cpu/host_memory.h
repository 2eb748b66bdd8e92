#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace aludel {

struct FreeHostMemory {
  void operator()(void* data) const { std::free(data); }
};
using HostMemory = std::unique_ptr<void, FreeHostMemory>;

// Memory aligned to 64 bytes, not initialized; null where there is none. Large blocks lie in huge pages where
// the kernel has them to give: weights are read end to end in every step, and a page walk a page
// costs bandwidth.
HostMemory AllocateHostMemory(size_t bytes);

// Pieces smaller than a huge page that are read end to end all the same, one behind the other, as the updates
// of an adapter: they lie in slabs of two huge pages in the order in which they were asked for. A slab goes with
// its last piece. Thread-safe; pieces may outlive it.
class HostSlabs {
 public:
  // As AllocateHostMemory.
  std::shared_ptr<void> Allocate(size_t bytes);

 private:
  std::mutex mutex_;
  std::weak_ptr<void> latest_;
  size_t used_ = 0;  // of the latest
};

}  // namespace aludel
