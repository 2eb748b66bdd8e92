#include <algorithm>
#include <cmath>

#include "runtime/model/model_config.h"

namespace aludel {
namespace {

// Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between interpolated.
double Llama3Frequency(double frequency, const RopeConfig& rope) {
  const double wavelength = 2.0 * M_PI / frequency;
  const double original = static_cast<double>(rope.original_max_positions);
  if (wavelength < original / rope.high_freq_factor) return frequency;
  if (wavelength > original / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth =
      (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

// YaRN (Peng et al. 2023): the dimension whose wavelength makes `rotations` turns over the original context.
double YarnDimension(double rotations, int head_dim, const RopeConfig& rope) {
  return head_dim * std::log(static_cast<double>(rope.original_max_positions) / (rotations * 2.0 * M_PI)) /
         (2.0 * std::log(rope.theta));
}

}  // namespace

RopeFrequencies MakeRopeFrequencies(const ModelConfig& config, int64_t length) {
  const RopeConfig& rope = config.rope;
  const int half = config.head_dim / 2;
  double theta = rope.theta;
  if (rope.scaling == RopeScaling::kDynamic) {
    const double original = static_cast<double>(rope.original_max_positions);
    const double stretched = std::max(static_cast<double>(length), original);
    const double base = rope.factor * stretched / original - (rope.factor - 1.0);
    theta *= std::pow(base, config.head_dim / (config.head_dim - 2.0));
  }
  double low = 0.0;
  double high = 0.0;
  if (rope.scaling == RopeScaling::kYarn) {
    low = YarnDimension(rope.beta_fast, config.head_dim, rope);
    high = YarnDimension(rope.beta_slow, config.head_dim, rope);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, config.head_dim - 1.0);
    if (low == high) high += 0.001;
  }

  RopeFrequencies result;
  result.inverse_frequency.resize(half);
  for (int i = 0; i < half; ++i) {
    double frequency = std::pow(theta, -2.0 * i / config.head_dim);
    switch (rope.scaling) {
      case RopeScaling::kNone:
      case RopeScaling::kDynamic:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3:
        frequency = Llama3Frequency(frequency, rope);
        break;
      case RopeScaling::kYarn: {
        const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
        frequency = frequency / rope.factor * ramp + frequency * (1.0 - ramp);
        break;
      }
    }
    result.inverse_frequency[i] = static_cast<float>(frequency);
  }
  if (rope.scaling == RopeScaling::kYarn) {
    result.attention_factor = static_cast<float>(rope.attention_factor > 0 ? rope.attention_factor
                                                 : rope.factor > 1.0       ? 0.1 * std::log(rope.factor) + 1.0
                                                                           : 1.0);
  }
  return result;
}

}  // namespace aludel
