#pragma once

#include <ucp/api/ucp.h>

#include <memory>

#include "absl/status/statusor.h"
#include "transport/transport.h"
#include "transport/ucx/ucx_context.h"

namespace aludel {

// Owns memory that UCX allocated and registered with every device in use. May be made and destroyed on any
// thread, while its context lives.
class UcxMemory : public MemoryRegion {
 public:
  static absl::StatusOr<std::unique_ptr<UcxMemory>> Allocate(const UcxContext& context, size_t bytes);
  ~UcxMemory() override { ucp_mem_unmap(context_, memory_); }
  UcxMemory(const UcxMemory&) = delete;
  UcxMemory& operator=(const UcxMemory&) = delete;

  absl::Span<uint8_t> bytes() override { return bytes_; }

 private:
  UcxMemory(ucp_context_h context, ucp_mem_h memory, absl::Span<uint8_t> bytes)
      : context_(context), memory_(memory), bytes_(bytes) {}

  const ucp_context_h context_;
  const ucp_mem_h memory_;
  const absl::Span<uint8_t> bytes_;
};

}  // namespace aludel
