#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "server/store/segment_file.h"
#include "server/store/stored_frames.h"

namespace aludel {

// Where a chunk lies on disk, and the lease on it.
struct DiskPlace {
  std::shared_ptr<SegmentFile> segment;  // null: nowhere
  uint32_t block = 0;                    // likewise 0
  uint32_t meta_bytes = 0;
  uint64_t payload_bytes = 0;
  uint8_t planes = 0;  // see Serves

  // A segment's first block is its head.
  bool exists() const { return block != 0; }
  uint64_t record_bytes() const { return RoundUpToBlock(meta_bytes + payload_bytes); }
  // What a chunk of so many tokens will weigh when it is read into memory.
  size_t weight(int64_t tokens) const {
    const size_t frames = (meta_bytes - ChunkMetaBytes(static_cast<size_t>(tokens), 0)) / kStoredFrameBytes;
    return StoredWeight(tokens, frames, payload_bytes);
  }
};

}  // namespace aludel
