#include "runtime/codec/staging_ring.h"

#include "absl/types/span.h"

namespace aludel {

StagingRing::StagingRing(Device* device, Stream stream, size_t bytes)
    : device_(device), marks_(dynamic_cast<StreamMarks*>(device)), stream_(stream) {
  if (marks_ == nullptr) return;
  for (Slot& slot : slots_) Grow(slot, bytes);
}

StagingRing::~StagingRing() {
  for (Slot& slot : slots_) Await(slot);
}

void StagingRing::Await(Slot& slot) {
  if (slot.read == nullptr) return;
  if (!slot.read->Passed()) {
    ++waits_;
    slot.read->Await();
  }
  slot.read.reset();
}

void StagingRing::Grow(Slot& slot, size_t bytes) const {
  if (bytes <= slot.bytes.capacity()) return;
  slot.pinned.reset();
  slot.bytes = {};
  slot.bytes.reserve(bytes);
  if (marks_ == nullptr) return;
  slot.pinned =
      std::make_unique<PinnedMemory>(device_, absl::MakeSpan(slot.bytes.data(), slot.bytes.capacity()));
}

std::vector<uint8_t>& StagingRing::Next(size_t bytes) {
  Slot& slot = slots_[next_];
  Await(slot);
  Grow(slot, bytes);
  slot.bytes.clear();
  return slot.bytes;
}

void StagingRing::Enqueued() {
  if (marks_ == nullptr) return;
  slots_[next_].read = marks_->MarkOf(stream_);
  next_ = (next_ + 1) % kSlots;
}

}  // namespace aludel
