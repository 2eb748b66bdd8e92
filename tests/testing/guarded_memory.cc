#include "tests/testing/guarded_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {
namespace {

constexpr size_t kBytes = size_t{2} << 30;
constexpr size_t kPage = 4096;
constexpr int kOnes = 0xff;

}  // namespace

GuardedMemory::GuardedMemory()
    : base_(static_cast<char*>(
          ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  ALUDEL_CHECK(base_ != MAP_FAILED);
}

GuardedMemory::~GuardedMemory() { ::munmap(base_, kBytes); }

absl::StatusOr<void*> GuardedMemory::Allocate(size_t bytes) {
  const size_t size = (std::max<size_t>(bytes, 1) + kPage - 1) / kPage * kPage;  // an address of its own
  const Opened opened(this);
  absl::MutexLock lock(&mutex_);
  void* data = base_ + used_;
  if (const auto found = free_.find(size); found != free_.end()) {
    data = found->second;
    free_.erase(found);
  } else if (size > kBytes - used_) {
    return absl::ResourceExhaustedError(absl::StrFormat("cannot allocate %d bytes on guarded", bytes));
  } else {
    used_ += size;
    Protect(PROT_READ | PROT_WRITE);
    std::memset(data, kOnes, size);
  }
  live_[data] = size;
  return data;
}

void GuardedMemory::Free(void* data) {
  const Opened opened(this);
  absl::MutexLock lock(&mutex_);
  const auto found = live_.find(data);
  ALUDEL_CHECK(found != live_.end());
  std::memset(data, kOnes, found->second);
  free_.emplace(found->second, data);
  live_.erase(found);
}

bool GuardedMemory::Holds(const void* data, size_t bytes) const {
  const auto* first = static_cast<const char*>(data);
  return first >= base_ && bytes <= kBytes && first <= base_ + kBytes - bytes;
}

void GuardedMemory::Open() {
  absl::MutexLock lock(&mutex_);
  if (opened_++ == 0) Protect(PROT_READ | PROT_WRITE);
}

void GuardedMemory::Close() {
  absl::MutexLock lock(&mutex_);
  if (--opened_ == 0) Protect(PROT_NONE);
}

void GuardedMemory::Protect(int protection) {
  if (used_ > 0) ALUDEL_CHECK(::mprotect(base_, used_, protection) == 0);
}

}  // namespace aludel
