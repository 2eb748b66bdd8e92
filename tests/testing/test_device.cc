#include "tests/testing/test_device.h"

#include <cstdlib>
#include <string>

#include "kernels/open_device.h"
#include "tests/testing/guarded_device.h"

namespace aludel {

absl::StatusOr<std::unique_ptr<Device>> OpenTestDevice(bool graphs) {
  const char* const named = std::getenv("ALUDEL_TEST_DEVICE");
  const std::string name = named == nullptr ? "cpu" : named;
  if (name == "guarded") return OpenGuardedDevice(/*threads=*/1);
  return OpenDevice({.name = name, .threads = 1, .graphs = graphs});
}

}  // namespace aludel
