#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace aludel {

// Page-aligned heap memory, for transports that need no other.
absl::StatusOr<std::unique_ptr<MemoryRegion>> AllocateHeapRegion(size_t bytes);

}  // namespace aludel
