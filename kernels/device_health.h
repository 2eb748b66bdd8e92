#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

// What no status of a single call says about the devices of this process. Thread-safe.
namespace aludel {

// The first error after which no work of this process will run on a GPU any more, or OK. It is the process's and not a
// Device's: CUDA keeps such an error in the context that all of them share, and returns it from every call until the
// process ends.
absl::Status LostDevice();
void ReportLostDevice(const absl::Status& error);

// Products that the GPU's library had no algorithm for, which a kernel of ours does (GemmEngine says which). A shape counts once
// for each device that met it, and of a device's the first 1,024.
struct SlowProducts {
  int64_t shapes = 0;
  std::string latest;
};
SlowProducts SlowProductsMet();
void ReportSlowProduct(std::string shape);

// Products whose algorithm was chosen by timing those that the GPU's library offers.
struct TimedProducts {
  int64_t shapes = 0;
  int64_t improved = 0;     // of them, where another than the library's first was kept
  double milliseconds = 0;  // of the GPU, for all
};
TimedProducts ProductsTimed();
void ReportTimedProduct(bool improved, double milliseconds);

// Bytes that the device `name` has free for allocations, or nothing where its memory is the host's, or cannot be asked.
std::optional<int64_t> FreeDeviceMemory(const std::string& name);

}  // namespace aludel
