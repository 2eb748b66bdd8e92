#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/store/store_record.h"
#include "server/store/disk_limits.h"
#include "server/store/disk_place.h"
#include "server/store/segment_file.h"
#include "server/store/store_stats.h"

namespace aludel {

// The segments of a directory: appended to at the youngest, dropped from the oldest on, never above a limit in bytes
// that counts all that the segments' files hold. For one writer at a time. Nothing is synced for each record: what a
// crash of the machine loses is a miss, since every record has its checksum. A segment is synced when it is sealed.
class DiskTier {
 public:
  struct Options {
    std::string path;
    uint64_t bytes = 0;
    StoreKey producer = {};
    // Chunks of others are dropped when the tier is opened.
    absl::flat_hash_set<std::string> encoders;  // StoreTags
  };
  // Of a chunk that is on disk, from the oldest on; or of a tombstone, which has no segment.
  using Found = std::function<void(const ChunkEntry& entry, const DiskPlace& place)>;

  // Takes the directory's lock, removes what was written by another version or for another producer, and tells of what
  // is there. FailedPrecondition where another process has the directory.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(Options options, const Found& found);
  // Seals the youngest segment.
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  // When it was opened; `undated` is the caller's to count.
  const DiskFindings& findings() const { return findings_; }
  // The largest record.
  uint64_t max_record_bytes() const { return limits_.max_record_bytes(); }
  // Whether a record of so many bytes, of which the footer has so many entries, fits without another segment's end.
  bool HasRoom(uint64_t record_bytes, size_t entries = 1) const;
  // Whether the oldest segment should go before such a record comes: there shall be room for what moves out of a
  // segment while a reader still has it. What was dropped and is leased does not count here, or a long lease would
  // empty the tier.
  bool IsTight(uint64_t record_bytes, size_t entries = 1) const;
  // Whether there is a segment before the youngest.
  bool has_older() const { return segments_.size() > 1; }
  // The oldest segment, which is taken out and unlinked; its bytes are free when the last lease on it is gone. Where it
  // cannot be unlinked it stays.
  absl::StatusOr<std::shared_ptr<SegmentFile>> DropOldest();

  // Where HasRoom. ResourceExhausted where the disk is full, Unavailable for other failures of it.
  absl::StatusOr<DiskPlace> Append(ChunkMeta meta, absl::Span<const absl::Span<const uint8_t>> payloads);
  absl::Status AppendTombstones(absl::Span<const StoreKey> keys);
  // Of what was appended last: it outlives a crash of the machine.
  absl::Status Sync();
  // Drops all segments, for good where it returns OK: after an error some may be found again after a restart.
  absl::Status Clear();

  // From any thread.
  uint64_t bytes() const { return total_->load(); }
  uint64_t written_bytes() const { return written_.load(); }

 private:
  DiskTier(Options options, int lock_file);
  absl::Status Recover(const Found& found);
  // Takes in one file. False: it is of no use. An error: it could not be read, which may pass.
  absl::StatusOr<bool> Adopt(const std::string& path, const Found& found);
  // Appends to the youngest segment, or to a new one where it is full.
  absl::Status Write(size_t bytes, const std::function<std::vector<uint8_t>(const RecordPlace&)>& encode);
  uint64_t Footer() const;
  void Seal();
  absl::Status SyncDirectory() const;

  const Options options_;
  DiskFindings findings_;
  const int lock_file_;
  const DiskLimits limits_;
  // Counts until the last lease on a segment is gone, which may be after this tier.
  const std::shared_ptr<std::atomic<uint64_t>> total_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::atomic<uint64_t> written_{0};
  std::deque<std::shared_ptr<SegmentFile>> segments_;  // oldest first
  std::vector<std::string> unread_;                    // files that are left alone until the next start
  uint64_t unread_bytes_ = 0;                          // of them; in total_ too
  bool open_ = false;                                  // the youngest is appended to
  std::vector<ChunkEntry> footer_;                     // of the youngest, while open
  uint64_t next_number_ = 1;
};

}  // namespace aludel
