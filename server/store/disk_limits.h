#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "runtime/codec/store/store_record.h"

namespace aludel {

// How a disk tier of segments keeps its limit in bytes: when the oldest segment goes, and how much of it is written again.
// Plain arithmetic, which a server and a simulator run alike.
class DiskLimits {
 public:
  // Each is an open file, of the 1,024 that a process usually may have.
  static constexpr size_t kMaxSegments = 256;

  explicit DiskLimits(uint64_t bytes) : bytes_(bytes) {}

  // A full one. Many segments, so that little is lost with each; but not too many files.
  uint64_t segment_bytes() const {
    return std::max({std::min(bytes_ / 16, kUsualSegment), bytes_ / (kMaxSegments / 2), kMinSegment});
  }
  uint64_t max_record_bytes() const { return bytes_ / 4; }
  // Whether a record of so many bytes goes behind what segments hold, files that are still open included. The youngest one's
  // footer has `footer` entries then, `entries` of them of the record.
  bool HasRoom(uint64_t held, size_t segments, uint64_t record_bytes, size_t footer, size_t entries) const {
    // A new segment's head, its footer, and the footer that the youngest one still gets.
    const uint64_t overhead = kStoreBlock + FooterBytes(entries) + FooterBytes(footer);
    return held + record_bytes + overhead <= bytes_ && segments < kMaxSegments;
  }
  // Whether the oldest segment goes before such a record comes: there is to be room for what is written again.
  bool IsTight(uint64_t held, size_t segments, uint64_t record_bytes, size_t footer) const {
    if (segments == 0) return false;
    if (segments >= kMaxSegments) return true;
    const uint64_t overhead = 2 * kStoreBlock + 2 * FooterBytes(footer);
    return held + record_bytes + overhead + std::min(segment_bytes(), bytes_ / 8) > bytes_;
  }
  // Of a segment that goes, so much is written again, and one record: it waits in memory meanwhile.
  static uint64_t RewrittenBytes(uint64_t segment_bytes) {
    return std::min(kMaxRewritten, segment_bytes / 2);
  }

 private:
  static constexpr uint64_t kMinSegment = 64 * 1024;
  static constexpr uint64_t kUsualSegment = 64 * 1024 * 1024;
  static constexpr uint64_t kMaxRewritten = 32 << 20;

  uint64_t bytes_;
};

}  // namespace aludel
