#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// How the latents of a group share their energy, for people: whether a few of them hold nearly all of it, so that fewer bytes would
// lose little, or each as much as the next.
struct LatentSpectrum {
  AludelGroup group;
  int64_t fitted = 0;  // latents before they were cut to a rate
  float step = 0;      // of the quantizer, on the scale of the latents' energy
  double sent = 0;     // share of the fitted ones' energy that the group's latents hold
  // Shares of what these hold that the first eighth, quarter and half of them do (rounded up).
  double first_eighth = 0, first_quarter = 0, first_half = 0;
};

// `energy`: of the fitted latents, the largest first (EncoderFit); the first `group.rank` are sent, at least 1.
LatentSpectrum MakeSpectrum(absl::Span<const double> energy, const AludelGroup& group, float step);

}  // namespace aludel
