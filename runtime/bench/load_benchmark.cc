#include "runtime/bench/load_benchmark.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "kernels/open_device.h"
#include "runtime/model/transformer.h"
#include "runtime/model/transformer_options.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr size_t kPiece = size_t{8} << 20;
constexpr int kReaders = 4;  // reads in flight: enough to keep a disk with a queue busy

// Bytes of a "Vm...: N kB" line of /proc/self/status.
absl::StatusOr<int64_t> ProcessBytes(absl::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!absl::StartsWith(line, field)) continue;
    const std::string number = line.substr(field.size() + 1, line.size() - field.size() - 1 - strlen(" kB"));
    int64_t kilobytes = 0;
    if (absl::SimpleAtoi(number, &kilobytes)) return kilobytes * 1024;
  }
  return absl::UnavailableError(absl::StrCat("/proc/self/status: no line ", field));
}

// Share of a file's pages that are in the page cache.
double CachedShare(const SafetensorsFile& file) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  void* map = ::mmap(nullptr, file.size(), PROT_READ, MAP_SHARED, file.map().descriptor(), 0);
  if (map == MAP_FAILED) return 1.0;
  std::vector<unsigned char> cached((file.size() + page - 1) / page);
  size_t count = cached.size();
  if (::mincore(map, file.size(), cached.data()) == 0) {
    count = 0;
    for (const unsigned char flags : cached) count += flags & 1;
  }
  ::munmap(map, file.size());
  return static_cast<double>(count) / static_cast<double>(cached.size());
}

absl::Status DropFromCache(const ModelPath& path) {
  ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(path));
  for (const auto& file : files.files()) {
    ::fdatasync(file->map().descriptor());  // only clean pages can be dropped
    // Pages that another core still holds in a batch survive the first call.
    for (int attempt = 0; attempt < 3; ++attempt) {
      ::posix_fadvise(file->map().descriptor(), 0, 0, POSIX_FADV_DONTNEED);
    }
    const double cached = CachedShare(*file);
    if (cached > 0.01) {
      return absl::FailedPreconditionError(
          absl::StrCat(file->path(), ": ", static_cast<int>(100 * cached),
                       " % of it stays in the page cache (another process uses it?)"));
    }
  }
  return absl::OkStatus();
}

// Reads one file past the page cache, so that nothing but the disk counts.
absl::Status ReadCold(const SafetensorsFile& file, const std::function<void(int64_t)>& progress) {
  const int fd = ::open(file.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat(file.path(), ": open with O_DIRECT: ", std::strerror(errno)));
  }
  std::atomic<uint64_t> next = 0;
  std::atomic<int> error = 0;
  const auto read = [&](bool reports) {
    void* buffer = std::aligned_alloc(4096, kPiece);
    for (uint64_t offset; error == 0 && (offset = next.fetch_add(kPiece)) < file.size();) {
      const ssize_t got = ::pread(fd, buffer, kPiece, static_cast<off_t>(offset));
      if (got < 0) error = errno;
      if (reports) progress(static_cast<int64_t>(offset));
    }
    std::free(buffer);
  };
  std::vector<std::thread> readers;
  for (int i = 1; i < kReaders; ++i) readers.emplace_back(read, false);
  read(true);
  for (std::thread& reader : readers) reader.join();
  ::close(fd);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(file.path(), ": ", std::strerror(error)));
}

// Touches `bytes` of fresh memory and gives them back.
absl::Status TouchMemory(int64_t bytes, const std::function<void(int64_t)>& progress) {
  void* memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory of ", bytes, " bytes: ", std::strerror(errno)));
  }
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  for (int64_t at = 0; at < bytes; at += page) {
    static_cast<volatile char*>(memory)[at] = 1;
    if (at % kPiece == 0) progress(at);
  }
  ::munmap(memory, bytes);
  return absl::OkStatus();
}

// Makes the peak of resident memory what is resident now.
void ForgetPeakMemory() { std::ofstream("/proc/self/clear_refs") << "5"; }

}  // namespace

absl::StatusOr<LoadBenchmark> BenchmarkLoad(
    const ModelPath& path, const std::string& device_name, DType compute,
    const std::function<void(const char* stage, int64_t done, int64_t total)>& progress) {
  LoadBenchmark result;
  ALUDEL_RETURN_IF_ERROR(DropFromCache(path));
  {
    ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(path));
    for (const auto& file : files.files()) result.bytes += static_cast<int64_t>(file->size());
    const absl::Time start = absl::Now();
    int64_t before = 0;
    for (const auto& file : files.files()) {
      ALUDEL_RETURN_IF_ERROR(
          ReadCold(*file, [&](int64_t done) { progress("read cold", before + done, result.bytes); }));
      before += static_cast<int64_t>(file->size());
    }
    result.disk_seconds = absl::ToDoubleSeconds(absl::Now() - start);
    progress("read cold", result.bytes, result.bytes);
  }
  ALUDEL_RETURN_IF_ERROR(DropFromCache(path));
  const absl::Time start = absl::Now();
  ALUDEL_RETURN_IF_ERROR(
      TouchMemory(result.bytes, [&](int64_t done) { progress("take memory", done, result.bytes); }));
  result.memory_seconds = absl::ToDoubleSeconds(absl::Now() - start);
  progress("take memory", result.bytes, result.bytes);
  ForgetPeakMemory();
  ALUDEL_ASSIGN_OR_RETURN(result.start_rss_bytes, ProcessBytes("VmRSS:"));
  ALUDEL_ASSIGN_OR_RETURN(const auto device, OpenDevice({.name = device_name}));
  TransformerOptions options;
  options.compute = compute;
  ALUDEL_ASSIGN_OR_RETURN(const auto model,
                          Transformer::Load(device.get(), path, options, [&](int64_t done, int64_t total) {
                            progress("load cold", done, total);
                          }));
  result.load_seconds = model->load_report().seconds;
  ALUDEL_ASSIGN_OR_RETURN(result.peak_rss_bytes, ProcessBytes("VmHWM:"));
  return result;
}

}  // namespace aludel
