#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace aludel {

// The device of tests that run on any: what the environment's ALUDEL_TEST_DEVICE names, "guarded" (see
// guarded_device.h) or a name of OpenDevice; without it "cpu". `graphs` as in DeviceOptions.
absl::StatusOr<std::unique_ptr<Device>> OpenTestDevice(bool graphs = true);

}  // namespace aludel
