#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/tensor.h"

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

// As above, of `count` ways to make a product into `out`: run(i, to) enqueues the i-th into `to`, which is out's memory or, where the
// product is added to what is there (`accumulate`), other memory as large, so that `out` is as it was. Counted by ReportTimedProduct. The
// first where that cannot be told, as where a graph is being captured.
size_t FastestProduct(size_t count, bool accumulate, const TensorView& out,
                      absl::FunctionRef<bool(size_t, void*)> run, CudaStream& stream);

// Of a product whose factors are `in` long.
inline double Flops(const TensorView& out, int64_t in) {
  return 2.0 * static_cast<double>(out.rows) * static_cast<double>(out.cols) * static_cast<double>(in);
}

}  // namespace aludel::cuda
