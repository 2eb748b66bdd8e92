#include "server/bench/store/sim_disk.h"

#include <utility>

namespace aludel {

void SimDisk::Grow(uint64_t bytes) {
  segments_.back().bytes += bytes;
  bytes_ += bytes;
}

SimDisk::Segment SimDisk::DropOldest() {
  if (segments_.size() == 1) {
    open_ = false;
    footer_ = 0;
  }
  Segment oldest = std::move(segments_.front());
  segments_.pop_front();
  bytes_ -= oldest.bytes;
  return oldest;
}

uint32_t SimDisk::Append(const ChunkKey& key, uint64_t record_bytes, double now) {
  if (open_ && segments_.back().bytes > kStoreBlock &&
      segments_.back().bytes + record_bytes + FooterBytes(footer_) > limits_.segment_bytes()) {
    Grow(FooterBytes(footer_));
    open_ = false;
    footer_ = 0;
  }
  if (!open_) {
    segments_.push_back({.number = next_number_++, .created = now});
    open_ = true;
    Grow(kStoreBlock);  // its head
  }
  Grow(record_bytes);
  written_ += record_bytes;
  ++footer_;
  segments_.back().keys.push_back(key);
  return segments_.back().number;
}

}  // namespace aludel
