#pragma once

#include "absl/strings/string_view.h"

namespace aludel {

// OpenBLAS, which multiplies and factors the f64 matrices of linear_fit.h, chooses its kernels when it is loaded, by a table of
// processor models. One that is younger than the table gets those of the oldest, without AVX: half as fast or worse.

// Kernels that suit a processor better than those named `chosen` (openblas_get_corename), as OPENBLAS_CORETYPE wants them;
// empty where there are none.
absl::string_view BetterBlasKernels(absl::string_view chosen, bool has_avx2, bool has_avx512);

// Starts this program again with OPENBLAS_CORETYPE, where better kernels suit this processor and nobody has set it. Returns
// where there is nothing to do, and where that fails: results are right with any kernels. First in main(), with its `argv`.
void StartWithBetterBlasKernels(char** argv);

}  // namespace aludel
