#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace aludel {

struct FreeHostMemory {
  void operator()(void* data) const { std::free(data); }
};
using HostMemory = std::unique_ptr<void, FreeHostMemory>;

// Memory aligned to 64 bytes, not initialized; null where there is none. Large blocks lie in huge pages where
// the kernel has them to give: weights are read end to end in every step, and a page walk a page
// costs bandwidth.
HostMemory AllocateHostMemory(size_t bytes);

}  // namespace aludel
