#pragma once

#include "absl/status/status.h"

namespace aludel::cuda {

// Loads libcublasLt the first time a CUDA device is opened, instead of with the program. Linked in, it would
// claim 94 KiB of every thread's stack for its thread-local data, in processes that never use a GPU too, and
// a library that gives its threads stacks of 100 KiB could not start one. The cuBLASLt calls of gemm.cc and fp8_plans.cc go through
// this one. FailedPrecondition names what is missing. Thread-safe.
absl::Status LoadCublasLt();

}  // namespace aludel::cuda
