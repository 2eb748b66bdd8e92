#include "transport/heap_region.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr size_t kAlignment = 4096;

class HeapRegion : public MemoryRegion {
 public:
  explicit HeapRegion(uint8_t* data, size_t bytes) : data_(data), size_(bytes) {}
  ~HeapRegion() override { std::free(data_); }
  HeapRegion(const HeapRegion&) = delete;
  HeapRegion& operator=(const HeapRegion&) = delete;

  absl::Span<uint8_t> bytes() override { return {data_, size_}; }

 private:
  uint8_t* const data_;
  const size_t size_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryRegion>> AllocateHeapRegion(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("cannot allocate a transport region of 0 bytes");
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate a transport region of ", bytes, " bytes"));
  }
  return std::make_unique<HeapRegion>(static_cast<uint8_t*>(data), bytes);
}

}  // namespace aludel
