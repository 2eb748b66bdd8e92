#include "server/store/write_behind.h"

#include <algorithm>

namespace aludel {

WriteBehind::WriteBehind(size_t max_bytes, std::function<void(const DiskWrite&)> write, bool shared)
    : max_bytes_(max_bytes), shared_(shared), write_(std::move(write)), thread_([this] { Loop(); }) {}

WriteBehind::~WriteBehind() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

bool WriteBehind::Push(DiskWrite write) {
  const size_t weight = write.weight();
  absl::MutexLock lock(&mutex_);
  if (bytes_ > 0 && bytes_ + weight > max_bytes_) return false;
  if (shared_) {
    size_t& own = bytes_of_[TenantOf(write.meta.entry.salt)];
    if (own > 0 && own + weight > max_bytes_ - std::min(bytes_, max_bytes_)) return false;
    own += weight;
  }
  bytes_ += weight;
  queue_.push_back(std::move(write));
  return true;
}

void WriteBehind::Run(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  bytes_ += sizeof(DiskWrite);
  queue_.push_back({.task = std::move(task)});
}

size_t WriteBehind::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

void WriteBehind::Loop() {
  for (;;) {
    DiskWrite write;
    {
      absl::MutexLock lock(&mutex_);
      const auto woken = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); };
      mutex_.Await(absl::Condition(&woken));
      if (queue_.empty()) return;
      write = std::move(queue_.front());
      queue_.pop_front();
    }
    const size_t weight = write.weight();
    if (write.task != nullptr) {
      write.task();
      write.task = nullptr;
    } else {
      write_(write);
    }
    absl::MutexLock lock(&mutex_);
    bytes_ -= weight;
    if (!shared_ || write.frames == nullptr) continue;
    const auto own = bytes_of_.find(TenantOf(write.meta.entry.salt));
    if ((own->second -= weight) == 0) bytes_of_.erase(own);
  }
}

}  // namespace aludel
