#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/device_options.h"

namespace aludel {

// The device of tests that run on any: what the environment's ALUDEL_TEST_DEVICE names, "guarded" (see
// guarded_device.h) or a name of OpenDevice; without it "cpu". Of `options` all but name and threads.
absl::StatusOr<std::unique_ptr<Device>> OpenTestDevice(DeviceOptions options = {});

}  // namespace aludel
