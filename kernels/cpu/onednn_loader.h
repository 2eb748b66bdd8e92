#pragma once

#include "absl/status/status.h"

namespace aludel::cpu {

// Loads oneDNN when it is first wanted, so that programs start, and everything but its products works, where
// it is not installed (a bundle leaves its 40 MB out). FailedPrecondition with the loader's own words. While
// it has not succeeded every function of oneDNN answers dnnl_runtime_error, or nothing. Thread-safe.
absl::Status LoadOneDnn();

}  // namespace aludel::cpu
