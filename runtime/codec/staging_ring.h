#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/device.h"
#include "kernels/pinned_memory.h"
#include "kernels/stream_marks.h"

namespace aludel {

// Bytes that a decoder makes on the host, on their way to the device while the host goes on: a few slots of pinned memory in
// turn, each written again when the device has read what it held. Where everything runs at once, one slot. Of all
// decoders of a codec, one call after the other; engine thread only.
class StagingRing {
 public:
  // Slots for `bytes`; larger ones are made when they are asked for. `device` must outlive the ring.
  StagingRing(Device* device, Stream stream, size_t bytes);
  // Waits for what reads the slots.
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  // The next slot, empty, which may grow to `bytes` and keeps its place in memory till then. Waits where the device still
  // reads it. Without an Enqueued it is the next one again.
  std::vector<uint8_t>& Next(size_t bytes);
  // All that reads the slot given last is on the stream.
  void Enqueued();

  // How often Next has waited.
  int64_t waits() const { return waits_; }

 private:
  static constexpr size_t kSlots = 3;
  struct Slot {
    std::vector<uint8_t> bytes;
    std::unique_ptr<PinnedMemory> pinned;     // of the whole capacity
    std::unique_ptr<StreamMarks::Mark> read;  // null: nothing reads it
  };
  void Await(Slot& slot);
  void Grow(Slot& slot, size_t bytes) const;

  Device* const device_;
  StreamMarks* const marks_;  // null: everything runs at once
  const Stream stream_;
  std::array<Slot, kSlots> slots_;
  size_t next_ = 0;
  int64_t waits_ = 0;
};

}  // namespace aludel
