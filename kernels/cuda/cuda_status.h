#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aludel::cuda {

// The one translation of CUDA's codes. `what` names the action and the device: "cuda:0: allocate 64 bytes".
// Out of memory is ResourceExhausted, a missing driver or GPU FailedPrecondition, the rest Internal. An error that the
// process does not recover from is reported to device_health.h, too.
absl::Status FromCuda(cudaError_t error, absl::string_view what);
absl::Status FromCublas(cublasStatus_t status, absl::string_view what);

}  // namespace aludel::cuda
