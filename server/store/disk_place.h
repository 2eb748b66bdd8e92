#pragma once

#include <cstdint>
#include <memory>

#include "server/store/segment_file.h"

namespace aludel {

// Where a chunk lies on disk, and the lease on it.
struct DiskPlace {
  std::shared_ptr<SegmentFile> segment;  // null: nowhere
  uint32_t block = 0;
  uint32_t meta_bytes = 0;
  uint64_t payload_bytes = 0;

  uint64_t record_bytes() const { return RoundUpToBlock(meta_bytes + payload_bytes); }
};

}  // namespace aludel
