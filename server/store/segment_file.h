#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/codec/store/segment_scan.h"
#include "runtime/codec/store/store_record.h"

namespace aludel {

// One open segment of the disk tier. Reading is thread-safe and goes on after Unlink; holding the segment is the lease.
// Its bytes count until the last lease is gone, since until then the file system keeps them. The rest is
// for one writer.
class SegmentFile {
 public:
  // A new one with its head written. `total` counts the bytes of all segments.
  static absl::StatusOr<std::unique_ptr<SegmentFile>> Create(const std::string& directory,
                                                             const SegmentHead& head,
                                                             std::shared_ptr<std::atomic<uint64_t>> total);
  // One that is there, for reading: cuts off what its writer did not finish. `contents` says what it holds.
  static absl::StatusOr<std::unique_ptr<SegmentFile>> Open(const std::string& path, SegmentContents* contents,
                                                           std::shared_ptr<std::atomic<uint64_t>> total);
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  uint64_t number() const { return number_; }
  uint64_t bytes() const { return bytes_; }
  int file() const { return file_; }
  // MonotonicNow() when it was made; InfinitePast where it was there before.
  absl::Time created() const { return created_; }
  // Where the next record goes.
  RecordPlace next() const { return {number_, static_cast<uint32_t>(bytes_ / kStoreBlock)}; }

  // Appends whole blocks. After an error the file is as before, unless is_torn().
  absl::Status Append(absl::Span<const uint8_t> blocks);
  // fdatasync.
  absl::Status Sync();
  // Half a record is at the end and cannot be taken back: nothing may be appended.
  bool is_torn() const { return torn_; }
  // Takes it out of its directory. OK where it is gone already.
  absl::Status Unlink();

 private:
  SegmentFile(std::string path, int file, std::shared_ptr<std::atomic<uint64_t>> total)
      : path_(std::move(path)), file_(file), total_(std::move(total)) {}
  void Grow(uint64_t bytes);

  const std::string path_;
  const int file_;
  const std::shared_ptr<std::atomic<uint64_t>> total_;
  uint64_t number_ = 0;
  absl::Time created_ = absl::InfinitePast();
  uint64_t bytes_ = 0;
  bool torn_ = false;
};

}  // namespace aludel
