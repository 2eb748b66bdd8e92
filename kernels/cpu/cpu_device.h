#pragma once

#include <memory>

#include "kernels/device.h"
#include "kernels/device_options.h"

namespace aludel {

// Host memory and threads as a Device. `options` but for its name.
absl::StatusOr<std::unique_ptr<Device>> OpenCpuDevice(const DeviceOptions& options);

}  // namespace aludel
