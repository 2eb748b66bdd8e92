#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace aludel {

// One stretch of addresses that nobody may read or write but while a GuardedMemory::Opened
// lives. Thread-safe.
class GuardedMemory {
 public:
  GuardedMemory();
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // 64-byte aligned and full of ones. ResourceExhausted beyond 2 GiB together.
  absl::StatusOr<void*> Allocate(size_t bytes);
  void Free(void* data);

  // Whether [data, data + bytes) lies in it.
  bool Holds(const void* data, size_t bytes) const;

  class Opened {
   public:
    explicit Opened(GuardedMemory* memory) : memory_(memory) { memory_->Open(); }
    ~Opened() { memory_->Close(); }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

   private:
    GuardedMemory* const memory_;
  };

 private:
  void Open();
  void Close();
  void Protect(int protection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  char* const base_;
  absl::Mutex mutex_;
  int opened_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;               // of the stretch, from its beginning
  std::map<void*, size_t> live_ ABSL_GUARDED_BY(mutex_);  // sizes, rounded up to pages
  std::multimap<size_t, void*> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
