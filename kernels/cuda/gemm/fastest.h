#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>

#include "absl/functional/function_ref.h"

namespace aludel::cuda {

struct Fastest {
  size_t index = 0;
  double milliseconds = 0;  // of the device, that all took
};

// Which of `count` ways to do the same work the device does in the least time: run(i) enqueues the i-th on `stream` and returns
// whether it is possible; a way that is not is left out. Each runs once to load its code and then a few times, of which the
// shortest counts; those that are not reached within a bounded time are left out, too. Waits for the stream, whose device is
// current and which is not being captured. Nothing where no way could be timed.
std::optional<Fastest> FastestOf(size_t count, absl::FunctionRef<bool(size_t)> run, cudaStream_t stream);

}  // namespace aludel::cuda
