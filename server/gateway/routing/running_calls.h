#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace aludel {

// Counts calls that use what its owner owns, so that the owner can wait for them. Thread-safe.
class RunningCalls {
 public:
  void Begin() {
    absl::MutexLock lock(&mutex_);
    ++calls_;
  }
  // The caller touches nothing of the owner's afterwards.
  void End() {
    absl::MutexLock lock(&mutex_);
    --calls_;
  }
  // Until none is left.
  void Await() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* calls) { return *calls == 0; }, &calls_));
  }

 private:
  absl::Mutex mutex_;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
