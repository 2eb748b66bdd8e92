#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "runtime/model/weights/file_map.h"

namespace aludel {

// A piece of a file that is read at once.
struct FilePiece {
  FileMap* file = nullptr;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Reads pieces in their order with several reads in flight, on threads of its own, a bounded way ahead of the
// one thread that consumes them.
class ReadAhead {
 public:
  explicit ReadAhead(std::vector<FilePiece> pieces);
  // Leaves unread what was not awaited.
  ~ReadAhead();

  const std::vector<FilePiece>& pieces() const { return pieces_; }
  // Waits until the next piece is in memory; the first error of a read ends the reading. Called once a piece.
  absl::Status AwaitNext();

 private:
  void Read();

  const std::vector<FilePiece> pieces_;
  absl::Mutex mutex_;
  std::vector<bool> read_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t consumed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> readers_;
};

}  // namespace aludel
