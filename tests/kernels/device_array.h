#pragma once

#include <utility>
#include <vector>

#include "kernels/device.h"
#include "kernels/tensor.h"

namespace aludel {

// Elements of a test in device memory: filled from the host when made, read back when asked. Must not outlive
// its device. A failure ends the test with the device's status.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(Device& device, const std::vector<T>& host)
      : device_(device), size_(host.size()), memory_(device.Allocate(host.size() * sizeof(T)).value()) {
    device_.CopyToDevice(memory_.data(), host.data(), size_ * sizeof(T), Stream{});
    const absl::Status status = device_.Synchronize(Stream{});
    ALUDEL_CHECK(status.ok());
  }

  T* data() const { return memory_.template as<T>(); }
  TensorView View(int64_t rows, int64_t cols) const { return TensorView::Of(data(), rows, cols); }

  // After everything enqueued on the null stream.
  absl::StatusOr<std::vector<T>> Read() const {
    std::vector<T> host(size_);
    device_.CopyToHost(host.data(), memory_.data(), size_ * sizeof(T), Stream{});
    if (absl::Status status = device_.Synchronize(Stream{}); !status.ok()) return status;
    return host;
  }

 private:
  Device& device_;
  size_t size_;
  Buffer memory_;
};

}  // namespace aludel
