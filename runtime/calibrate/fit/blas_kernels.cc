#include "runtime/calibrate/fit/blas_kernels.h"

#include <cblas.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <system_error>

namespace aludel {
namespace {

constexpr char kVariable[] = "OPENBLAS_CORETYPE";

}  // namespace

absl::string_view BetterBlasKernels(absl::string_view chosen, bool has_avx2, bool has_avx512) {
  if (!has_avx2) return {};
  for (const absl::string_view without_avx : {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem", "Atom",
                                              "Opteron", "Opteron_SSE3", "Barcelona", "Bobcat"}) {
    if (chosen == without_avx) return has_avx512 ? "SkylakeX" : "Haswell";
  }
  return {};
}

void StartWithBetterBlasKernels(char** argv) {
  if (std::getenv(kVariable) != nullptr) return;
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const std::string better(BetterBlasKernels(openblas_get_corename(), has_avx2, has_avx512));
  if (better.empty()) return;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || setenv(kVariable, better.c_str(), 0) != 0) return;
  execv(self.c_str(), argv);
}

}  // namespace aludel
