#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "server/bench/commands.h"
#include "server/store/prefix_store.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench store-load writes a prefix store to a disk, drops it from the page cache, opens it and reads it chunk
by chunk in the order in which it was written, as a prefill server does: a few chunks ahead, every checksum verified.
To be compared with fio on the same file system (tests/bench/RESULTS.md).

  aludel-bench store-load --dir /mnt/store --bytes 2147483648)";

struct Flags {
  std::string dir;
  int64_t bytes = int64_t{1} << 30;
  int64_t chunk_bytes = 1 << 20;
  int64_t threads = 4;
  int64_t ahead = 4;
};

constexpr int64_t kChunkTokens = 64;
constexpr int64_t kChunksOfPrompt = 64;

CodecSpec Format() { return {.name = "bench", .shipped_layers = {true}}; }

PrefixStore::Options StoreOptions(const Flags& flags, size_t memory_bytes) {
  return {.producer = "bench",
          .memory_bytes = memory_bytes,
          .disk = PrefixStore::Disk{.path = flags.dir,
                                    .bytes = static_cast<uint64_t>(flags.bytes) * 2,
                                    .read_threads = static_cast<size_t>(flags.threads)},
          .encoders = {EncoderTag(Format())}};
}

std::vector<int32_t> Prompt(int64_t number) {
  std::vector<int32_t> prompt(static_cast<size_t>(kChunkTokens * kChunksOfPrompt),
                              static_cast<int32_t>(number));
  return prompt;
}

int64_t Prompts(const Flags& flags) {
  return std::max<int64_t>(1, flags.bytes / (flags.chunk_bytes * kChunksOfPrompt));
}

// A full queue refuses chunks: so it is awaited.
absl::Status Fill(const Flags& flags) {
  PrefixStore store(StoreOptions(flags, size_t{256} << 20));
  if (!store.stats().disk.open) return absl::UnavailableError("the store keeps nothing on disk");
  std::mt19937_64 random(1);
  std::vector<uint8_t> payload(static_cast<size_t>(flags.chunk_bytes));
  for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random());
  for (int64_t i = 0; i < Prompts(flags); ++i) {
    const std::vector<int32_t> prompt = Prompt(i);
    StorePosition at = store.Begin(Format(), "");
    for (int64_t chunk = 0; chunk < kChunksOfPrompt; ++chunk) {
      while (store.stats().queued_bytes > (32 << 20)) usleep(1000);
      const auto begin = static_cast<uint32_t>(at.tokens);
      std::vector<StoredFrame> frames = {{{0, 1, 0, begin, static_cast<uint32_t>(kChunkTokens)}, payload}};
      if (!store.Put(prompt, at.tokens + kChunkTokens, std::move(frames), &at)) {
        return absl::InternalError("the store took no chunk");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status DropFromPageCache(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const int file = open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return absl::UnavailableError(entry.path().string());
    fdatasync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
  return absl::OkStatus();
}

// How many reads are under way, and what came of them.
struct Reads {
  absl::Mutex mutex;
  int64_t open ABSL_GUARDED_BY(mutex) = 0;
  int64_t failed ABSL_GUARDED_BY(mutex) = 0;
  uint64_t bytes ABSL_GUARDED_BY(mutex) = 0;
};

absl::Status ReadAll(const Flags& flags, PrefixStore& store, Reads* reads) {
  for (int64_t i = 0; i < Prompts(flags); ++i) {
    const std::vector<int32_t> prompt = Prompt(i);
    StorePosition at = store.Begin(Format(), "");
    const std::vector<StoredChunk> chunks = store.Find(prompt, absl::InfiniteDuration(), &at);
    if (static_cast<int64_t>(chunks.size()) != kChunksOfPrompt)
      return absl::InternalError("a chunk is not there");
    for (const StoredChunk& chunk : chunks) {
      {
        absl::MutexLock lock(&reads->mutex);
        const auto has_place = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reads->mutex) {
          return reads->open < flags.ahead;
        };
        reads->mutex.Await(absl::Condition(&has_place));
        ++reads->open;
      }
      store.Load(chunk, prompt, [reads](const StoredFrames& frames) {
        absl::MutexLock lock(&reads->mutex);
        --reads->open;
        if (frames == nullptr) {
          ++reads->failed;
        } else {
          for (const StoredFrame& frame : *frames) reads->bytes += frame.payload.size();
        }
      });
    }
  }
  absl::MutexLock lock(&reads->mutex);
  const auto ended = [reads]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(reads->mutex) { return reads->open == 0; };
  reads->mutex.Await(absl::Condition(&ended));
  return reads->failed == 0 ? absl::OkStatus() : absl::DataLossError("a chunk could not be read");
}

absl::Status Run(const Flags& flags) {
  ALUDEL_RETURN_IF_ERROR(Fill(flags));
  ALUDEL_RETURN_IF_ERROR(DropFromPageCache(flags.dir));
  PrefixStore store(StoreOptions(flags, size_t{16} << 20));
  Reads reads;
  const absl::Time begun = MonotonicNow();
  ALUDEL_RETURN_IF_ERROR(ReadAll(flags, store, &reads));
  const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begun);
  absl::MutexLock lock(&reads.mutex);
  absl::PrintF("%d bytes in chunks of %d: %.2f s, %.0f MB/s\n", reads.bytes, flags.chunk_bytes, seconds,
               static_cast<double>(reads.bytes) / seconds / 1e6);
  return absl::OkStatus();
}

}  // namespace

absl::Status StoreLoadCommand(int argc, char** argv) {
  Flags values;
  FlagSet flags(kUsage);
  flags.Add("dir", "DIR", &values.dir, "an empty directory for the store");
  flags.Add("bytes", "N", &values.bytes, "to write and read");
  flags.Add("chunk-bytes", "N", &values.chunk_bytes, "of each chunk");
  flags.Add("threads", "N", &values.threads, "that read");
  flags.Add("ahead", "N", &values.ahead, "chunks that are being read at a time");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (values.dir.empty()) return absl::InvalidArgumentError("--dir is not given");
  if (values.bytes < 1 || values.chunk_bytes < 1 || values.threads < 1 || values.ahead < 1) {
    return absl::InvalidArgumentError("counts are at least 1");
  }
  return Run(values);
}

}  // namespace aludel
