#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace aludel {

// GPU `ordinal` of this process's CUDA runtime as a Device. FailedPrecondition, with the runtime's reason and
// the remedy, where there is no driver, no such GPU, or one older than compute capability 8.0. `graphs` as in
// DeviceOptions.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal, bool graphs);

}  // namespace aludel
