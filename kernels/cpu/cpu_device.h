#pragma once

#include <memory>

#include "kernels/device.h"

namespace aludel {

// Host memory and threads as a Device. `threads` as in DeviceOptions.
std::unique_ptr<Device> OpenCpuDevice(int threads);

}  // namespace aludel
