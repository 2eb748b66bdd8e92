#include "kernels/device.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"

namespace aludel {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) device_->Free(data_);
}

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceOptions& options) {
  if (options.threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("device threads is ", options.threads, ", want 0 or more"));
  }
  if (options.name == "cpu") return OpenCpuDevice(options.threads);
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", options.name, "\" is not known to this build, want \"cpu\""));
}

}  // namespace aludel
