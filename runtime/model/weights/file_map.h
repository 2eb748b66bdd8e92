#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace aludel {

// The bytes of a read-only file at an address that stays until the object goes. They are the page cache's, so
// that a second server on the host shares them; or, between BypassCache and UseCache, private memory that
// Populate fills straight from the disk. Populate and Drop may be called by several threads for
// different bytes.
class FileMap {
 public:
  // Of memory; direct reads are aligned to it too, which is a multiple of what any disk asks for.
  static uint64_t PageBytes();
  // NotFound, or InvalidArgument where `path` is no regular file or is empty.
  static absl::StatusOr<std::unique_ptr<FileMap>> Open(const std::string& path);
  ~FileMap();
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  const std::string& path() const { return path_; }
  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  int descriptor() const { return fd_; }

  // From here on only bytes that were populated and not dropped are the file's, and none passes through the
  // page cache: reading a large file once costs half the copies and a fraction of the page faults. False, and
  // nothing changes, where the file system cannot read like this. The bytes must not be read meanwhile.
  bool BypassCache();
  void UseCache();

  // Brings bytes [begin, end) into memory; DataLoss where the disk fails or the file has been cut, which
  // would otherwise be a SIGBUS at the first read. Past the cache, `begin` is a multiple of the page size.
  absl::Status Populate(uint64_t begin, uint64_t end) const;
  // Takes the whole pages of [begin, end) out of this process, and with `from_cache` out of the page
  // cache too.
  void Drop(uint64_t begin, uint64_t end, bool from_cache) const;

 private:
  FileMap() = default;
  absl::Status ReadPastCache(uint64_t begin, uint64_t end) const;

  std::string path_;
  int fd_ = -1;
  int direct_fd_ = -1;  // while the cache is bypassed
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace aludel
