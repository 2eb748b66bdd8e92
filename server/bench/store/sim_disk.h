#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "server/store/chunk_key.h"
#include "server/store/disk_limits.h"

namespace aludel {

// DiskTier without files: segments that are appended to at the youngest and dropped from the oldest on, by the same
// arithmetic (DiskLimits). What is written is there at once.
class SimDisk {
 public:
  struct Segment {
    uint32_t number = 0;  // from 1
    double created = 0;   // seconds
    uint64_t bytes = 0;
    std::vector<ChunkKey> keys;  // of its records, in order
  };

  explicit SimDisk(uint64_t bytes) : limits_(bytes) {}

  uint64_t max_record_bytes() const { return limits_.max_record_bytes(); }
  bool HasRoom(uint64_t record_bytes) const {
    return limits_.HasRoom(bytes_, segments_.size(), record_bytes, footer_ + 1, 1);
  }
  bool IsTight(uint64_t record_bytes) const {
    return limits_.IsTight(bytes_, segments_.size(), record_bytes, footer_ + 1);
  }
  Segment DropOldest();
  // Where HasRoom. Returns the segment's number.
  uint32_t Append(const ChunkKey& key, uint64_t record_bytes, double now);

  uint64_t bytes() const { return bytes_; }
  uint64_t written_bytes() const { return written_; }

 private:
  void Grow(uint64_t bytes);

  const DiskLimits limits_;
  std::deque<Segment> segments_;  // oldest first
  uint64_t bytes_ = 0;            // of all of them
  uint64_t written_ = 0;          // of records
  bool open_ = false;             // the youngest is appended to
  size_t footer_ = 0;             // entries of its footer
  uint32_t next_number_ = 1;
};

}  // namespace aludel
