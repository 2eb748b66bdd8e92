#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"

namespace aludel {

// Pins host memory for fast copies from and to a device (Device::Pin) while this lives. Must die before the
// memory and the device.
class PinnedMemory {
 public:
  PinnedMemory(Device* device, absl::Span<uint8_t> memory) : device_(device), memory_(memory) {
    status_ = device->Pin(memory);
  }
  ~PinnedMemory() {
    if (status_.ok()) device_->Unpin(memory_);
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Not OK: copies work all the same, more slowly.
  const absl::Status& status() const { return status_; }

 private:
  Device* const device_;
  const absl::Span<uint8_t> memory_;
  absl::Status status_;
};

}  // namespace aludel
