#pragma once

#include <cstdint>

#include "kernels/host_device.h"

// FP8 E4M3 (Micikevicius et al. 2022, the "fn" variant): a sign, four bits of exponent (bias 7), three of mantissa. No
// infinities, one NaN for each sign. The same to the bit on every device.
namespace aludel {

constexpr float kE4m3Max = 448.0f;
constexpr uint8_t kE4m3Nan = 0x7f;

constexpr bool IsE4m3Nan(uint8_t code) { return (code & 0x7f) == kE4m3Nan; }

ALUDEL_HOST_DEVICE inline float FromE4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  // Subnormals are multiples of 2^-9; the exponents of others move to binary32's.
  float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f
                              : __builtin_bit_cast(float, (magnitude << 20) + (120u << 23));
  if (magnitude == kE4m3Nan) value = __builtin_bit_cast(float, 0x7fc00000u);
  return (code & 0x80u) != 0 ? -value : value;
}

// The nearest, of two as near the even one; beyond the largest it is that. NaN stays NaN.
ALUDEL_HOST_DEVICE inline uint8_t ToE4m3(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | kE4m3Nan);
  const auto size = __builtin_bit_cast(float, magnitude);
  if (size >= kE4m3Max) return static_cast<uint8_t>(sign | 0x7eu);
  if (size < 0x1p-6f) {
    // Added to a float whose last bit is 2^-9 it leaves the nearest multiple of that in the low bits.
    constexpr float kRounder = 0x1p14f;
    const auto rounded = __builtin_bit_cast(uint32_t, size + kRounder);
    return static_cast<uint8_t>(sign | (rounded - __builtin_bit_cast(uint32_t, kRounder)));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

}  // namespace aludel
