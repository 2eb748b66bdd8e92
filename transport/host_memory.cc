#include "transport/host_memory.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr size_t kAlignment = 4096;

class HostMemory : public MemoryRegion {
 public:
  explicit HostMemory(uint8_t* data, size_t bytes) : data_(data), size_(bytes) {}
  ~HostMemory() override { std::free(data_); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  absl::Span<uint8_t> bytes() override { return {data_, size_}; }

 private:
  uint8_t* const data_;
  const size_t size_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryRegion>> AllocateHostMemory(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("cannot allocate a transport region of 0 bytes");
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate a transport region of ", bytes, " bytes"));
  }
  return std::make_unique<HostMemory>(static_cast<uint8_t*>(data), bytes);
}

}  // namespace aludel
