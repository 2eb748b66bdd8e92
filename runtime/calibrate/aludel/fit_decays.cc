#include "runtime/calibrate/aludel/fit_decays.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/base/call_once.h"
#include "kernels/latents.h"
#include "runtime/codec/aludel/latent_tables.h"

namespace aludel {
namespace {

// Scales are powers of 2^(1/4) steps, from codes that are nearly all 0 to those of the most bits: one in between costs
// 0.002 bits a code at most.
constexpr int kFirstScale = -16, kLastScale = 52;

struct Scale {
  float decay = 0;
  std::array<double, kMaxRansSymbols> bits = {};  // that a symbol takes
};

std::vector<Scale> MakeScales(int bits) {
  std::vector<Scale> scales;
  for (int i = kFirstScale; i <= kLastScale; ++i) {
    Scale scale;
    const double decay = std::exp(-0.5 / std::exp2(i / 4.0));
    scale.decay = std::clamp(static_cast<float>(decay), kMinDecay, kMaxDecay);
    const std::vector<uint16_t> frequencies = LatentFrequencies(bits, scale.decay);
    for (size_t s = 0; s < frequencies.size(); ++s) {
      if (frequencies[s] > 0) scale.bits[s] = kRansBits - std::log2(frequencies[s]);
    }
    scales.push_back(scale);
  }
  return scales;
}

// Made once for each number of bits: a search over steps fits decays for every step that it tries.
const std::vector<Scale>& ScalesOf(int bits) {
  struct Made {
    absl::once_flag once;
    std::vector<Scale> scales;
  };
  static auto& made = *new std::array<Made, kMaxLatentBits + 1>();
  Made& of_bits = made[bits];
  absl::call_once(of_bits.once, [&] { of_bits.scales = MakeScales(bits); });
  return of_bits.scales;
}

}  // namespace

void SymbolCounts::Add(const float* z, int64_t tokens, int64_t stride) {
  const float inverse_step = 1.0f / grid_.step;
  for (int64_t t = 0; t < tokens; ++t) {
    for (size_t i = 0; i < counts_.size(); ++i) {
      const int32_t code = LatentCode(z[t * stride + static_cast<int64_t>(i)], inverse_step, grid_.bits[i]);
      ++counts_[i][static_cast<uint8_t>(code >> std::max(0, grid_.bits[i] - 8))];
    }
  }
}

std::vector<float> SymbolCounts::FitDecays() const {
  std::vector<float> decays;
  for (size_t i = 0; i < counts_.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    float best = 0;
    for (const Scale& scale : ScalesOf(grid_.bits[i])) {
      double bits = 0;
      for (size_t s = 0; s < kMaxRansSymbols; ++s) bits += static_cast<double>(counts_[i][s]) * scale.bits[s];
      if (bits >= least) continue;
      least = bits;
      best = scale.decay;
    }
    decays.push_back(best);
  }
  return decays;
}

}  // namespace aludel
