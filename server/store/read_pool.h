#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace aludel {

// Threads that wait for a disk so that those that serve do not. Bounded; thread-safe.
class ReadPool {
 public:
  ReadPool(size_t threads, size_t max_queued);
  // Does what is queued, then joins the threads.
  ~ReadPool();

  // False: too much is queued, as when the disk hangs.
  bool Post(std::function<void()> read);

 private:
  void Run();

  const size_t max_queued_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace aludel
