#include "runtime/model/weights/file_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

uint64_t DownToPage(uint64_t offset) { return offset / FileMap::PageBytes() * FileMap::PageBytes(); }
uint64_t UpToPage(uint64_t offset) { return DownToPage(offset + FileMap::PageBytes() - 1); }

}  // namespace

uint64_t FileMap::PageBytes() {
  static const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

absl::StatusOr<std::unique_ptr<FileMap>> FileMap::Open(const std::string& path) {
  std::unique_ptr<FileMap> file(new FileMap());
  file->path_ = path;
  // Opening a FIFO otherwise waits for a writer.
  file->fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->fd_ < 0) {
    const std::string message = absl::StrCat(path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  struct stat info {};
  if (::fstat(file->fd_, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file, or empty"));
  }
  file->size_ = static_cast<uint64_t>(info.st_size);
  void* map = ::mmap(nullptr, file->size_, PROT_READ, MAP_PRIVATE, file->fd_, 0);
  if (map == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": mapping ", file->size_, " bytes: ", std::strerror(errno)));
  }
  file->data_ = static_cast<uint8_t*>(map);
  return file;
}

FileMap::~FileMap() {
  if (data_ != nullptr) ::munmap(data_, size_);
  if (fd_ >= 0) ::close(fd_);
  if (direct_fd_ >= 0) ::close(direct_fd_);
}

bool FileMap::BypassCache() {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  if (fd < 0) return false;
  void* memory = ::mmap(data_, size_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (memory == MAP_FAILED) {
    ::close(fd);
    return false;
  }
  ::madvise(memory, size_, MADV_HUGEPAGE);  // one fault for 512 pages
  direct_fd_ = fd;
  return true;
}

void FileMap::UseCache() {
  if (direct_fd_ < 0) return;
  // Over its own range a mapping cannot fail but for want of kernel memory; then the bytes read as they are.
  ::mmap(data_, size_, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd_, 0);
  ::close(direct_fd_);
  direct_fd_ = -1;
}

absl::Status FileMap::ReadPastCache(uint64_t begin, uint64_t end) const {
  uint64_t at = begin;
  while (at < end) {
    const ssize_t got = ::pread(direct_fd_, data_ + at, UpToPage(end) - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return absl::DataLossError(absl::StrCat(path_, ": reading bytes ", at, " to ", end, " of ", size_, ": ",
                                              got == 0 ? "the file has been cut" : std::strerror(errno)));
    }
    at += static_cast<uint64_t>(got);
    if (at < end && at % PageBytes() != 0) {
      return absl::DataLossError(absl::StrCat(path_, ": the file ends at byte ", at, ", want ", size_));
    }
  }
  return absl::OkStatus();
}

absl::Status FileMap::Populate(uint64_t begin, uint64_t end) const {
  if (direct_fd_ >= 0) return ReadPastCache(begin, end);
  ::posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_WILLNEED);
#ifdef MADV_POPULATE_READ
  const uint64_t from = DownToPage(begin);
  int result = 0;
  do {
    result = ::madvise(data_ + from, end - from, MADV_POPULATE_READ);
  } while (result != 0 && errno == EINTR);
  // A kernel before 5.14 does not know the advice: pages come when they are read.
  if (result != 0 && errno != EINVAL) {
    return absl::DataLossError(absl::StrCat(path_, ": reading bytes ", begin, " to ", end, " of ", size_,
                                            ": ", std::strerror(errno)));
  }
#endif
  return absl::OkStatus();
}

void FileMap::Drop(uint64_t begin, uint64_t end, bool from_cache) const {
  // Hints: what cannot be dropped stays. Pages shared with a neighbor stay, for past the cache its bytes
  // would be lost.
  const uint64_t from = UpToPage(begin);
  const uint64_t to = end == size_ ? UpToPage(end) : DownToPage(end);
  if (to > from) ::madvise(data_ + from, to - from, MADV_DONTNEED);
  if (from_cache && direct_fd_ < 0) {
    ::posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
  }
}

}  // namespace aludel
