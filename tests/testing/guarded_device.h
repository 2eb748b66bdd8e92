#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace aludel {

// A device of a test that behaves as a GPU does where code could forget it, and computes on the CPU:
//   * its memory cannot be touched from the host (PROT_NONE) but by its own copies and operations; a touch
//     ends the process with SIGSEGV,
//   * pointers in host memory given to an operation, or swapped in a copy, fail a CHECK,
//   * work on a stream happens when that stream is synchronized and not before: until then what CopyToHost
//     shall bring is full of ones, and what CopyToDevice shall read must still be there,
//   * work given to Repeat is run twice, the first time in vain; it calls operations alone, and where it
//     differs under its key in more than what host arrays hold, a CHECK fails. Steps are rounded up for it (ReplayKinds).
// Freed memory is full of ones (NaN in either type), as is memory that nobody has written. Thread-safe as
// a Device.
absl::StatusOr<std::unique_ptr<Device>> OpenGuardedDevice(int threads);

}  // namespace aludel
