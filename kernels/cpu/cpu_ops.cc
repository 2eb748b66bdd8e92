#include "kernels/cpu/cpu_ops.h"

#include <algorithm>

namespace aludel {

CpuOps::CpuOps(int threads, absl::Span<const int> cores, const cpu::MicroKernels& kernels, bool library)
    : kernels_(kernels),
      team_(threads, cores),
      library_(library ? std::make_unique<cpu::LibraryGemm>(threads) : nullptr) {}

void CpuOps::ForRows(int64_t rows, int64_t work, absl::FunctionRef<void(int64_t, int64_t)> body) {
  // A few microseconds' worth: less is done sooner than it is handed over.
  constexpr int64_t kTaskWork = 1 << 15;
  constexpr int64_t kTasksPerThread = 4;
  if (rows == 0) return;
  const int64_t at_most =
      (rows + kTasksPerThread * team_.threads() - 1) / (kTasksPerThread * team_.threads());
  const int64_t step = std::max(at_most, std::min(rows, kTaskWork / std::max<int64_t>(work, 1) + 1));
  team_.Run((rows + step - 1) / step,
            [&](int64_t task) { body(task * step, std::min(rows, (task + 1) * step)); });
}

}  // namespace aludel
