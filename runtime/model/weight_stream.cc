#include "runtime/model/weight_stream.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "runtime/model/json_reader.h"
#include "runtime/model/read_ahead.h"
#include "runtime/status_macros.h"
#include "xxhash.h"

namespace aludel {
namespace {

constexpr int kPackers = 2;
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
// Bytes of tasks that may wait for a packer.
constexpr uint64_t kMaxWaitingBytes = uint64_t{256} << 20;
// Files of more than this share of the machine's memory do not pass through the page cache.
constexpr double kCachedShare = 0.25;
constexpr size_t kMaxConfigBytes = size_t{4} << 20;

// XXH3 of 128 bits: it tells models apart at the speed of memory, where SHA-256 would take longer than a fast
// disk. It is no defence: who can replace a model's weights need not fake their hash.
class ModelHash {
 public:
  ModelHash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_128bits_reset(state_.get()); }
  void Update(const void* bytes, size_t size) { XXH3_128bits_update(state_.get(), bytes, size); }
  std::string Hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  }

 private:
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

class WeightStream {
 public:
  WeightStream(const ModelFiles& files, std::vector<LoadTask> tasks, const LoadProgress& progress);
  absl::StatusOr<std::string> Run();

 private:
  // A task and where in the stream (all weight files end to end) its last byte has gone by.
  struct Waiting {
    LoadTask task;
    uint64_t ready_at = 0;
    uint64_t bytes = 0;
  };

  std::vector<FilePiece> Pieces() const;
  absl::Status ReadAll();
  absl::Status Advance(uint64_t bytes);
  void RunTasks();
  void Fail(const absl::Status& status);

  const ModelFiles& files_;
  const LoadProgress& progress_;
  std::vector<Waiting> tasks_;  // by ready_at
  uint64_t total_ = 0;
  bool drop_cache_ = false;
  ModelHash hash_;

  absl::Mutex mutex_;
  uint64_t read_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t finished_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_task_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

WeightStream::WeightStream(const ModelFiles& files, std::vector<LoadTask> tasks, const LoadProgress& progress)
    : files_(files), progress_(progress) {
  std::vector<uint64_t> begin_of;
  for (const auto& file : files.files()) {
    begin_of.push_back(total_);
    total_ += file->size();
  }
  for (LoadTask& task : tasks) {
    Waiting waiting;
    for (const TensorBytes& bytes : task.reads) {
      const size_t file = files.FileOf(*bytes.tensor);
      const uint64_t end = begin_of[file] + files.files()[file]->OffsetOf(*bytes.tensor) + bytes.end;
      waiting.ready_at = std::max(waiting.ready_at, end);
      waiting.bytes += bytes.end - bytes.begin;
    }
    waiting.task = std::move(task);
    tasks_.push_back(std::move(waiting));
  }
  const double memory =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  drop_cache_ = static_cast<double>(total_) > kCachedShare * memory;
  std::stable_sort(tasks_.begin(), tasks_.end(),
                   [](const Waiting& a, const Waiting& b) { return a.ready_at < b.ready_at; });
}

absl::StatusOr<std::string> WeightStream::Run() {
  if (drop_cache_) {
    for (const auto& file : files_.files()) file->map().BypassCache();
  }
  const auto map_again = absl::MakeCleanup([this] {
    for (const auto& file : files_.files()) file->map().UseCache();
  });
  std::vector<std::thread> packers;
  for (int i = 0; i < kPackers && !tasks_.empty(); ++i) packers.emplace_back([this] { RunTasks(); });
  const absl::Status read = ReadAll();
  if (!read.ok()) Fail(read);
  for (std::thread& packer : packers) packer.join();
  {
    absl::MutexLock lock(&mutex_);
    ALUDEL_RETURN_IF_ERROR(status_);
  }
  if (progress_) progress_(static_cast<int64_t>(total_), static_cast<int64_t>(total_));
  return hash_.Hex();
}

void WeightStream::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (status_.ok()) status_ = status;
}

std::vector<FilePiece> WeightStream::Pieces() const {
  std::vector<FilePiece> pieces;
  for (const auto& file : files_.files()) {
    for (uint64_t begin = 0; begin < file->size(); begin += kPieceBytes) {
      pieces.push_back({&file->map(), begin, std::min(begin + kPieceBytes, file->size())});
    }
  }
  return pieces;
}

absl::Status WeightStream::ReadAll() {
  const std::string config_path = absl::StrCat(files_.directory(), "/config.json");
  ALUDEL_ASSIGN_OR_RETURN(const std::string config, ReadFile(config_path, kMaxConfigBytes));
  bool config_hashed = false;
  const auto hash_config = [&] {
    if (!config_hashed) hash_.Update(config.data(), config.size());
    config_hashed = true;
  };
  ReadAhead reader(Pieces());
  for (const FilePiece& piece : reader.pieces()) {
    if (config_path < piece.file->path()) hash_config();
    ALUDEL_RETURN_IF_ERROR(reader.AwaitNext());
    hash_.Update(piece.file->data() + piece.begin, piece.end - piece.begin);
    if (tasks_.empty()) piece.file->Drop(piece.begin, piece.end, drop_cache_);
    ALUDEL_RETURN_IF_ERROR(Advance(piece.end - piece.begin));
  }
  hash_config();
  return absl::OkStatus();
}

// Announces `bytes` more to the packers, and waits for them where they are far behind.
absl::Status WeightStream::Advance(uint64_t bytes) {
  uint64_t read = 0;
  {
    absl::MutexLock lock(&mutex_);
    read_ += bytes;
    read = read_;
    uint64_t ready_bytes = 0;
    for (const Waiting& waiting : tasks_) {
      if (waiting.ready_at > read_) break;
      ready_bytes += waiting.bytes;
    }
    const auto caught_up = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return !status_.ok() || ready_bytes - finished_bytes_ <= kMaxWaitingBytes;
    };
    mutex_.Await(absl::Condition(&caught_up));
    ALUDEL_RETURN_IF_ERROR(status_);
  }
  if (progress_ && read < total_) progress_(static_cast<int64_t>(read), static_cast<int64_t>(total_));
  return absl::OkStatus();
}

void WeightStream::RunTasks() {
  while (true) {
    const Waiting* waiting = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      if (next_task_ == tasks_.size()) return;
      waiting = &tasks_[next_task_++];
      const auto can_go = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return !status_.ok() || read_ >= waiting->ready_at;
      };
      mutex_.Await(absl::Condition(&can_go));
      if (!status_.ok()) return;
    }
    const absl::Status status = waiting->task.run();
    for (const TensorBytes& bytes : waiting->task.reads) {
      const SafetensorsFile& file = *files_.files()[files_.FileOf(*bytes.tensor)];
      const uint64_t at = file.OffsetOf(*bytes.tensor);
      file.map().Drop(at + bytes.begin, at + bytes.end, drop_cache_);
    }
    if (!status.ok()) Fail(status);
    absl::MutexLock lock(&mutex_);
    finished_bytes_ += waiting->bytes;
  }
}

}  // namespace

absl::StatusOr<std::string> StreamWeights(const ModelFiles& files, std::vector<LoadTask> tasks,
                                          const LoadProgress& progress) {
  return WeightStream(files, std::move(tasks), progress).Run();
}

absl::StatusOr<std::string> HashModel(const std::string& directory) {
  ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(directory));
  return StreamWeights(files, {}, nullptr);
}

}  // namespace aludel
