#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "runtime/codec/store/store_record.h"
#include "server/store/chunk_key.h"
#include "server/store/stored_frames.h"

namespace aludel {

// A chunk on its way to the disk; without frames, a tombstone for its key.
struct DiskWrite {
  ChunkMeta meta;
  StoredFrames frames;
  uint64_t generation = 0;     // of the store
  bool replace = false;        // what is there already, at the remote
  std::function<void()> task;  // to be run instead of a write

  size_t weight() const {
    return sizeof(DiskWrite) + (frames == nullptr ? 0 : StoredWeight(meta.entry.tokens, *frames));
  }
};

// Writes in order on a thread of its own, so that no request waits for a disk. Bounded: what does not fit is not
// written; one chunk fits always, whatever its size. With `shared`, each tenant that waits may fill as much as it leaves
// free, so that one that writes much leaves room for the others. Thread-safe.
class WriteBehind {
 public:
  WriteBehind(size_t max_bytes, std::function<void(const DiskWrite&)> write, bool shared = false);
  // Writes what is queued, then joins the thread.
  ~WriteBehind();

  // False: the queue is full.
  bool Push(DiskWrite write);
  // Has the thread run this in its turn, whatever is queued.
  void Run(std::function<void()> task);
  // Of all that is queued or being written.
  size_t bytes() const;

 private:
  void Loop();

  const size_t max_bytes_;
  const bool shared_;
  const std::function<void(const DiskWrite&)> write_;
  mutable absl::Mutex mutex_;
  std::deque<DiskWrite> queue_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<TenantTag, size_t> bytes_of_ ABSL_GUARDED_BY(mutex_);  // of tenants, where it is shared
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace aludel
