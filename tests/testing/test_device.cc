#include "tests/testing/test_device.h"

#include <cstdlib>
#include <string>

#include "kernels/open_device.h"
#include "tests/testing/guarded_device.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<Device>> OpenTestDevice(DeviceOptions options) {
  const char* const named = std::getenv("ALUDEL_TEST_DEVICE");
  options.name = named == nullptr ? "cpu" : named;
  options.threads = 1;
  if (options.name == "guarded") return OpenGuardedDevice(options.threads);
  return OpenDevice(options);
}

}  // namespace aludel
