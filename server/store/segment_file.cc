#include "server/store/segment_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Prompts can be read off token ids.
constexpr mode_t kOwnerOnly = 0600;

absl::Status Failed(const std::string& path, const char* what, int error) {
  const std::string text = absl::StrCat(path, ": ", what, ": ", strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text)
                                            : absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentFile>> SegmentFile::Create(
    const std::string& directory, const SegmentHead& head, std::shared_ptr<std::atomic<uint64_t>> total) {
  const std::string path = absl::StrCat(directory, "/", SegmentName(head.number));
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOwnerOnly);
  if (file < 0) return Failed(path, "open", errno);
  std::unique_ptr<SegmentFile> segment(new SegmentFile(path, file, std::move(total)));
  segment->number_ = head.number;
  segment->created_ = MonotonicNow();
  const auto encoded = EncodeSegmentHead(head);
  std::vector<uint8_t> block(kStoreBlock);
  std::copy(encoded.begin(), encoded.end(), block.begin());
  absl::Status written = segment->Append(block);
  if (!written.ok()) {
    written.Update(segment->Unlink());
    return written;
  }
  return segment;
}

absl::StatusOr<std::unique_ptr<SegmentFile>> SegmentFile::Open(const std::string& path,
                                                               SegmentContents* contents,
                                                               std::shared_ptr<std::atomic<uint64_t>> total) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return Failed(path, "open", errno);
  std::unique_ptr<SegmentFile> segment(new SegmentFile(path, file, std::move(total)));
  struct stat status = {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return Failed(path, "not a file", errno);
  ALUDEL_ASSIGN_OR_RETURN(*contents, ScanSegment(file, static_cast<uint64_t>(status.st_size)));
  segment->number_ = contents->head.number;
  auto bytes = static_cast<uint64_t>(status.st_size);
  if (contents->valid_bytes < bytes && ftruncate(file, static_cast<off_t>(contents->valid_bytes)) == 0) {
    bytes = contents->valid_bytes;
  }
  segment->Grow(bytes);
  return segment;
}

SegmentFile::~SegmentFile() {
  close(file_);
  total_->fetch_sub(bytes_);
}

void SegmentFile::Grow(uint64_t bytes) {
  bytes_ += bytes;
  total_->fetch_add(bytes);
}

absl::Status SegmentFile::Append(absl::Span<const uint8_t> blocks) {
  uint64_t offset = bytes_;
  while (!blocks.empty()) {
    const ssize_t put = pwrite(file_, blocks.data(), blocks.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      const int error = put == 0 ? ENOSPC : errno;
      if (ftruncate(file_, static_cast<off_t>(bytes_)) != 0) {
        torn_ = true;
        Grow(offset - bytes_);  // what is there counts
      }
      return Failed(path_, "write", error);
    }
    offset += static_cast<uint64_t>(put);
    blocks.remove_prefix(static_cast<size_t>(put));
  }
  Grow(offset - bytes_);
  return absl::OkStatus();
}

absl::Status SegmentFile::Sync() {
  return fdatasync(file_) == 0 ? absl::OkStatus() : Failed(path_, "fdatasync", errno);
}

absl::Status SegmentFile::Unlink() {
  return unlink(path_.c_str()) == 0 || errno == ENOENT ? absl::OkStatus() : Failed(path_, "unlink", errno);
}

}  // namespace aludel
