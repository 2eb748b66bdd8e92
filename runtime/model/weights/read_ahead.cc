#include "runtime/model/weights/read_ahead.h"

#include <algorithm>
#include <utility>

namespace aludel {
namespace {

constexpr size_t kReaders = 4;  // reads in flight: enough to keep a disk with a queue busy
constexpr size_t kMaxAhead = 16;

}  // namespace

ReadAhead::ReadAhead(std::vector<FilePiece> pieces) : pieces_(std::move(pieces)), read_(pieces_.size()) {
  for (size_t i = 0; i < std::min(kReaders, pieces_.size()); ++i) readers_.emplace_back([this] { Read(); });
}

ReadAhead::~ReadAhead() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  for (std::thread& reader : readers_) reader.join();
}

void ReadAhead::Read() {
  while (true) {
    size_t index = 0;
    {
      absl::MutexLock lock(&mutex_);
      const auto may_go = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopped_ || next_ == pieces_.size() || next_ < consumed_ + kMaxAhead;
      };
      mutex_.Await(absl::Condition(&may_go));
      if (stopped_ || next_ == pieces_.size()) return;
      index = next_++;
    }
    const FilePiece& piece = pieces_[index];
    const absl::Status status = piece.file->Populate(piece.begin, piece.end);
    absl::MutexLock lock(&mutex_);
    read_[index] = true;
    if (!status.ok()) {
      if (status_.ok()) status_ = status;
      stopped_ = true;
    }
  }
}

absl::Status ReadAhead::AwaitNext() {
  absl::MutexLock lock(&mutex_);
  const size_t index = consumed_;
  const auto arrived = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !status_.ok() || read_[index]; };
  mutex_.Await(absl::Condition(&arrived));
  ++consumed_;
  return status_;
}

}  // namespace aludel
