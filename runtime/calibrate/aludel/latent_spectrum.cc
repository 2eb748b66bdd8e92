#include "runtime/calibrate/aludel/latent_spectrum.h"

#include <numeric>

#include "kernels/check.h"

namespace aludel {

LatentSpectrum MakeSpectrum(absl::Span<const double> energy, const AludelGroup& group, float step) {
  const auto fitted = static_cast<int64_t>(energy.size());
  ALUDEL_CHECK(group.rank >= 1 && group.rank <= fitted);
  const auto first = [&](int64_t latents) {
    return std::accumulate(energy.begin(), energy.begin() + latents, 0.0);
  };
  const double sent = first(group.rank), all = first(fitted);
  const auto part = [&](int64_t divisor) {
    return sent > 0 ? first((group.rank + divisor - 1) / divisor) / sent : 0;
  };
  return {group, fitted, step, all > 0 ? sent / all : 0, part(8), part(4), part(2)};
}

}  // namespace aludel
