#include "server/store/read_pool.h"

#include <utility>

namespace aludel {

ReadPool::ReadPool(size_t threads, size_t max_queued) : max_queued_(max_queued) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

ReadPool::~ReadPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool ReadPool::Post(std::function<void()> read) {
  absl::MutexLock lock(&mutex_);
  if (queue_.size() >= max_queued_) return false;
  queue_.push_back(std::move(read));
  return true;
}

void ReadPool::Run() {
  for (;;) {
    std::function<void()> read;
    {
      absl::MutexLock lock(&mutex_);
      const auto woken = [this]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); };
      mutex_.Await(absl::Condition(&woken));
      if (queue_.empty()) return;
      read = std::move(queue_.front());
      queue_.pop_front();
    }
    read();
  }
}

}  // namespace aludel
