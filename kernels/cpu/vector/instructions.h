#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu/vector/micro_kernels.h"

namespace aludel::cpu {

// The micro-kernels for `instructions`: "portable", "avx2", "avx512", "avx512_bf16", or the best that this
// CPU can run where it is empty. FailedPrecondition for one that it cannot run, InvalidArgument for
// another name.
absl::StatusOr<const MicroKernels*> ChooseKernels(const std::string& instructions);

}  // namespace aludel::cpu
