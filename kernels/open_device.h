#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/device_options.h"

namespace aludel {

// InvalidArgument for a name or instructions that no backend of this build knows; FailedPrecondition where
// the hardware is missing.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const DeviceOptions& options);

}  // namespace aludel
