#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>

namespace aludel::cuda {

// The way of results to host memory that is not pinned: through a ring of pinned memory, as a copy to pageable memory would
// stop the caller and run at a fraction of the link's rate. They are numbered from 1 on, and delivered in that order, once the
// caller knows that the GPU has copied them. Thread-safe.
class ReturnRing {
 public:
  explicit ReturnRing(size_t bytes) : bytes_(bytes) {}
  ReturnRing(const ReturnRing&) = delete;
  ReturnRing& operator=(const ReturnRing&) = delete;

  // `pinned` holds the ring's bytes. Before all other calls.
  void SetMemory(char* pinned) { memory_ = pinned; }
  char* memory() const { return memory_; }

  // Where a result for `host` shall be copied to, until it is delivered; null where the ring has no room for it now.
  // `bytes` > 0.
  char* Add(void* host, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::optional<size_t> offset = Place(bytes);
    if (!offset.has_value()) return nullptr;
    returning_.push_back({host, *offset, bytes});
    ++added_;
    return memory_ + *offset;
  }
  // The number of the latest result, or 0.
  uint64_t added() const {
    const std::lock_guard lock(mutex_);
    return added_;
  }
  // Brings the results up to number `last` to their places, unless they are there.
  void Deliver(uint64_t last) {
    const std::lock_guard lock(mutex_);
    while (added_ - returning_.size() < last) {
      const Returning& first = returning_.front();
      std::memcpy(first.host, memory_ + first.offset, first.bytes);
      returning_.pop_front();
    }
  }
  // Those that were not delivered never are.
  void Forget() {
    const std::lock_guard lock(mutex_);
    returning_.clear();
  }

 private:
  struct Returning {
    void* host;
    size_t offset;
    size_t bytes;
  };

  // Behind the latest one, or at the beginning, where nothing lies any more.
  std::optional<size_t> Place(size_t bytes) const {
    const size_t begin = returning_.empty() ? 0 : returning_.front().offset;
    const size_t last = returning_.empty() ? 0 : returning_.back().offset;
    const size_t end = returning_.empty() ? 0 : last + returning_.back().bytes;
    const bool wrapped = last < begin;
    if (bytes <= (wrapped ? begin : bytes_) - end) return end;
    if (!wrapped && bytes <= begin) return 0;
    return std::nullopt;
  }

  const size_t bytes_;
  char* memory_ = nullptr;
  mutable std::mutex mutex_;
  std::deque<Returning> returning_;  // oldest first
  uint64_t added_ = 0;
};

}  // namespace aludel::cuda
