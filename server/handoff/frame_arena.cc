#include "server/handoff/frame_arena.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Extents start on cache lines, as vector copies and checksums like it.
constexpr size_t kAlignment = 64;

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

FrameExtent& FrameExtent::operator=(FrameExtent&& other) noexcept {
  std::swap(arena_, other.arena_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

FrameExtent::~FrameExtent() {
  if (arena_ != nullptr) arena_->Return(bytes_);
}

absl::StatusOr<std::unique_ptr<FrameArena>> FrameArena::Create(Transport* transport, size_t bytes) {
  const size_t rounded = RoundUp(bytes);
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<MemoryRegion> region, transport->Allocate(rounded));
  return std::unique_ptr<FrameArena>(new FrameArena(std::move(region), rounded));
}

FrameArena::FrameArena(std::unique_ptr<MemoryRegion> region, size_t bytes)
    : region_(std::move(region)), total_(bytes) {
  free_[0] = total_;
}

absl::StatusOr<FrameExtent> FrameArena::Reserve(size_t bytes) {
  const size_t wanted = std::max(RoundUp(bytes), kAlignment);
  absl::MutexLock lock(&mutex_);
  size_t largest = 0;
  for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
    const auto [offset, size] = *piece;
    largest = std::max(largest, size);
    if (size < wanted) continue;
    free_.erase(piece);
    if (size > wanted) free_[offset + wanted] = size - wanted;
    reserved_ += wanted;
    return FrameExtent(this, region_->bytes().subspan(offset, wanted));
  }
  return absl::ResourceExhaustedError(absl::StrCat("frame arena: ", wanted,
                                                   " bytes are wanted, the largest of its ", free_.size(),
                                                   " free pieces has ", largest, " of ", total_));
}

void FrameArena::Return(absl::Span<uint8_t> bytes) {
  absl::MutexLock lock(&mutex_);
  size_t offset = static_cast<size_t>(bytes.data() - region_->bytes().data());
  size_t size = bytes.size();
  reserved_ -= size;
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    ALUDEL_CHECK(before->first + before->second <= offset);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (after != free_.end() && bytes.data() + bytes.size() == region_->bytes().data() + after->first) {
    size += after->second;
    free_.erase(after);
  }
  free_[offset] = size;
}

size_t FrameArena::bytes_reserved() const {
  absl::MutexLock lock(&mutex_);
  return reserved_;
}

}  // namespace aludel
