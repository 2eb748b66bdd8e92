#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/check.h"
#include "kernels/host_device.h"
#include "kernels/sample.h"

// The arithmetic of sample.h, the same bits on the host and in kernels: every float operation is one that
// IEEE-754 rounds, with nothing left that a compiler may contract.
namespace aludel {

constexpr int kOctaveBits = 25;
constexpr int kWeightBits = 44;
constexpr int32_t kFar = (kWeightBits + 1) << kOctaveBits;  // the distance of what is out of reach

// RowSampling as the integers that rows are drawn with.
struct DrawTerms {
  float units_per_logit = 0;  // octave units
  bool greedy = false;
  int32_t top_k = 0;          // 0: off
  uint64_t top_p = 0;         // in 2^-64, rounded up; 0: off
  uint64_t least_weight = 0;  // that min_p leaves
  uint64_t uniform = 0;       // in 2^-64
};

inline DrawTerms TermsOf(const RowSampling& sampling) {
  constexpr double kLog2E = 1.4426950408889634;
  ALUDEL_CHECK(sampling.uniform >= 0.0 && sampling.uniform < 1.0);
  DrawTerms terms;
  terms.greedy = sampling.temperature < kGreedyBelow || sampling.top_k == 1;
  if (terms.greedy) return terms;
  terms.units_per_logit = static_cast<float>(kLog2E * (1 << kOctaveBits) / sampling.temperature);
  terms.top_k = std::max(sampling.top_k, 0);
  if (sampling.top_p > 0.0 && sampling.top_p < 1.0) {
    terms.top_p = static_cast<uint64_t>(std::ceil(sampling.top_p * 0x1p64));
  }
  terms.least_weight =
      static_cast<uint64_t>(std::ceil(std::clamp(sampling.min_p, 0.0, 1.0) * (int64_t{1} << kWeightBits)));
  terms.uniform = static_cast<uint64_t>(sampling.uniform * 0x1p64);
  return terms;
}

// Logits in their order, as integers: both zeros are one, and NaN is above all else.
ALUDEL_HOST_DEVICE inline int32_t KeyOf(float logit) {
  const auto bits = __builtin_bit_cast(int32_t, logit + 0.0f);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fffffff;
  return bits ^ (bits >> 31 & 0x7fffffff);
}
// What KeyOf made a key of; the key is that of a number.
ALUDEL_HOST_DEVICE inline float LogitOf(int32_t key) {
  return __builtin_bit_cast(float, key ^ (key >> 31 & 0x7fffffff));
}
// Neither NaN nor infinite.
ALUDEL_HOST_DEVICE inline bool IsNumber(int32_t key) { return key < 0x7f800000 && key >= ~0x7f7fffff; }

// `largest` is a number, `logit` none above it.
ALUDEL_HOST_DEVICE inline int32_t DistanceOf(float largest, float logit, float units_per_logit) {
  constexpr float kReach = static_cast<float>(int64_t{kWeightBits} << kOctaveBits);
  const float distance = (largest - logit) * units_per_logit;
  // Infinity times zero is not within reach either.
  return distance < kReach ? static_cast<int32_t>(distance) : kFar;
}

ALUDEL_HOST_DEVICE inline uint64_t WeightOf(int32_t distance) {
  const int32_t octaves = (distance + (1 << (kOctaveBits - 1))) >> kOctaveBits;
  // 2^x for x in [-1/2, 1/2] (coefficients of Cephes' exp2f).
  const float x = static_cast<float>((octaves << kOctaveBits) - distance) * 0x1p-25f;
  float p = 1.535336188319500e-4f;
  p = std::fma(p, x, 1.339887440266574e-3f);
  p = std::fma(p, x, 9.618437357674640e-3f);
  p = std::fma(p, x, 5.550332471162809e-2f);
  p = std::fma(p, x, 2.402264791363012e-1f);
  p = std::fma(p, x, 6.931472028550421e-1f);
  p = std::fma(p, x, 1.0f);
  const auto mantissa = static_cast<int32_t>(p * 0x1p24f);
  return static_cast<uint64_t>(mantissa) << (kWeightBits - 24) >> octaves;
}

// Targets: a sum that exceeds them has come far enough.

// share (in 2^-64) of total, rounded down: less than total.
ALUDEL_HOST_DEVICE inline uint64_t DrawTarget(uint64_t uniform, uint64_t total) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(uniform) * total >> 64);
}
// What exceeds it reaches the share top_p > 0 of total > 0.
ALUDEL_HOST_DEVICE inline uint64_t TopPTarget(uint64_t top_p, uint64_t total) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(top_p) * total - 1) >> 64);
}

}  // namespace aludel
