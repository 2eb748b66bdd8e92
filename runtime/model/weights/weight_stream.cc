#include "runtime/model/weights/weight_stream.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "kernels/core_list.h"
#include "runtime/files/json_reader.h"
#include "runtime/model/adapters/lora_adapter.h"
#include "runtime/model/weights/page_readers.h"
#include "runtime/model/weights/read_ahead.h"
#include "runtime/status_macros.h"
#include "xxhash.h"

namespace aludel {
namespace {

constexpr int kMaxPackers = 8;  // more than any disk feeds
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;
// Bytes of tasks that may wait for a packer.
constexpr uint64_t kMaxWaitingBytes = uint64_t{256} << 20;
constexpr size_t kMaxConfigBytes = size_t{4} << 20;

// XXH3 of 128 bits: it tells models apart at the speed of memory, where SHA-256 would take longer than a fast
// disk. It is no defense: an attacker that can replace a model's weights need not fake their hash.
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

int CountPackers(int asked) {
  int count = asked;
  if (count == 0) {
    const int cores = static_cast<int>(AllowedCores().size());
    const int quota = CoresOfQuota();
    count = quota == 0 ? cores : std::min(cores, quota);
  }
  return std::clamp(count, 1, kMaxPackers);
}

class WeightStream {
 public:
  WeightStream(const ModelFiles& files, std::vector<LoadTask> tasks, const StreamOptions& options,
               const LoadProgress& progress);
  absl::StatusOr<StreamedFiles> Run();

 private:
  struct FileBytes {
    size_t file = 0;
    ByteRange range;
  };
  // A task and where in the stream (all weight files end to end) its last byte has gone by.
  struct Waiting {
    std::function<absl::Status()> run;
    std::vector<FileBytes> reads;
    uint64_t ready_at = 0;
    uint64_t bytes = 0;  // of the stream, since the task before it was ready
  };

  std::vector<FileBytes> Pieces() const;
  void CountReaders();
  absl::Status ReadAll();
  absl::Status Advance(uint64_t bytes);
  void RunTasks();
  void Fail(const absl::Status& status);

  const ModelFiles& files_;
  const LoadProgress& progress_;
  const int packers_;
  std::vector<Waiting> tasks_;                         // by ready_at
  std::vector<std::unique_ptr<PageReaders>> readers_;  // by file
  uint64_t total_ = 0;
  bool drop_cache_ = false;
  ModelHash hash_;

  absl::Mutex mutex_;
  uint64_t read_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t finished_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_task_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t ready_tasks_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

WeightStream::WeightStream(const ModelFiles& files, std::vector<LoadTask> tasks, const StreamOptions& options,
                           const LoadProgress& progress)
    : files_(files), progress_(progress), packers_(CountPackers(options.packers)) {
  std::vector<uint64_t> begin_of;
  for (const auto& file : files.files()) {
    begin_of.push_back(total_);
    total_ += file->size();
  }
  for (LoadTask& task : tasks) {
    Waiting waiting;
    for (const TensorBytes& bytes : task.reads) {
      const size_t file = files.FileOf(*bytes.tensor);
      const uint64_t at = files.files()[file]->OffsetOf(*bytes.tensor);
      waiting.reads.push_back({file, {at + bytes.begin, at + bytes.end}});
      waiting.ready_at = std::max(waiting.ready_at, begin_of[file] + at + bytes.end);
    }
    waiting.run = std::move(task.run);
    tasks_.push_back(std::move(waiting));
  }
  const double memory =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  drop_cache_ = static_cast<double>(total_) > options.cached_share * memory;
  std::stable_sort(tasks_.begin(), tasks_.end(),
                   [](const Waiting& a, const Waiting& b) { return a.ready_at < b.ready_at; });
  uint64_t ready = 0;
  for (Waiting& waiting : tasks_) {
    waiting.bytes = waiting.ready_at - ready;
    ready = waiting.ready_at;
  }
  CountReaders();
}

// Registers the readers of bytes: the hash reads all of them, and each task its own.
void WeightStream::CountReaders() {
  std::vector<std::vector<ByteRange>> ranges(files_.files().size());
  for (const FileBytes& piece : Pieces()) ranges[piece.file].push_back(piece.range);
  for (const Waiting& waiting : tasks_) {
    for (const FileBytes& read : waiting.reads) ranges[read.file].push_back(read.range);
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    readers_.push_back(std::make_unique<PageReaders>(&files_.files()[i]->map(), ranges[i], drop_cache_));
  }
}

absl::StatusOr<StreamedFiles> WeightStream::Run() {
  StreamedFiles result;
  if (drop_cache_) {
    for (const auto& file : files_.files()) result.past_cache |= file->map().BypassCache();
  }
  const auto map_again = absl::MakeCleanup([this] {
    for (const auto& file : files_.files()) file->map().UseCache();
  });
  std::vector<std::thread> packers;
  for (int i = 0; i < packers_ && !tasks_.empty(); ++i) packers.emplace_back([this] { RunTasks(); });
  const absl::Status read = ReadAll();
  if (!read.ok()) Fail(read);
  for (std::thread& packer : packers) packer.join();
  {
    absl::MutexLock lock(&mutex_);
    ALUDEL_RETURN_IF_ERROR(status_);
  }
  if (progress_) progress_(static_cast<int64_t>(total_), static_cast<int64_t>(total_));
  result.hash = files_.adapter() == nullptr ? hash_.Hex() : HashAdapted(*files_.adapter(), hash_.Hex());
  return result;
}

void WeightStream::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (status_.ok()) status_ = status;
}

std::vector<WeightStream::FileBytes> WeightStream::Pieces() const {
  std::vector<FileBytes> pieces;
  for (size_t i = 0; i < files_.files().size(); ++i) {
    const uint64_t size = files_.files()[i]->size();
    for (uint64_t begin = 0; begin < size; begin += kPieceBytes) {
      pieces.push_back({i, {begin, std::min(begin + kPieceBytes, size)}});
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
  const LoraAdapter* adapter = files_.adapter();
  const std::vector<FileBytes> pieces = Pieces();
  std::vector<FilePiece> to_read;
  for (const auto& [file, range] : pieces) {
    to_read.push_back({&files_.files()[file]->map(), range.begin, range.end});
  }
  ReadAhead reader(std::move(to_read));
  for (const auto& [file, range] : pieces) {
    const FileMap& map = files_.files()[file]->map();
    const bool of_adapter = adapter != nullptr && &map == &adapter->file().map();
    if (!of_adapter && config_path < map.path()) hash_config();
    ALUDEL_RETURN_IF_ERROR(reader.AwaitNext());
    if (!of_adapter) hash_.Update(map.data() + range.begin, range.end - range.begin);
    readers_[file]->Done(range);
    ALUDEL_RETURN_IF_ERROR(Advance(range.end - range.begin));
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
    while (ready_tasks_ < tasks_.size() && tasks_[ready_tasks_].ready_at <= read_) ++ready_tasks_;
    const uint64_t ready_bytes = ready_tasks_ == 0 ? 0 : tasks_[ready_tasks_ - 1].ready_at;
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
    const absl::Status status = waiting->run();
    for (const FileBytes& read : waiting->reads) readers_[read.file]->Done(read.range);
    if (!status.ok()) Fail(status);
    absl::MutexLock lock(&mutex_);
    finished_bytes_ += waiting->bytes;
  }
}

}  // namespace

absl::StatusOr<StreamedFiles> StreamWeights(const ModelFiles& files, std::vector<LoadTask> tasks,
                                            const StreamOptions& options, const LoadProgress& progress) {
  return WeightStream(files, std::move(tasks), options, progress).Run();
}

std::string HashAdapted(const LoraAdapter& adapter, const std::string& base_hash) {
  const FileMap& map = adapter.file().map();
  ModelHash hash;
  hash.Update(adapter.config_text().data(), adapter.config_text().size());
  hash.Update(map.data(), map.size());
  hash.Update(base_hash.data(), base_hash.size());
  return hash.Hex();
}

absl::StatusOr<std::string> HashModel(const ModelPath& path) {
  ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(path));
  ALUDEL_ASSIGN_OR_RETURN(StreamedFiles streamed, StreamWeights(files, {}, {}, nullptr));
  return std::move(streamed.hash);
}

}  // namespace aludel
