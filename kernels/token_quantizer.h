#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/tensor.h"

namespace aludel {

// The largest level of a code.
ALUDEL_HOST_DEVICE constexpr int LevelLimit(int bits) { return bits == 8 ? 127 : 7; }

// The smallest bf16 that is at least largest / limit (not negative): with a scale rounded down, the largest
// value would not fit its code.
ALUDEL_HOST_DEVICE inline uint16_t ScaleBits(float largest, int bits) {
  const auto quotient = __builtin_bit_cast(uint32_t, largest / static_cast<float>(LevelLimit(bits)));
  return static_cast<uint16_t>((quotient >> 16) + ((quotient & 0xffffu) != 0 ? 1 : 0));
}

// From 0 to 2^112: whatever the codes, 128 of them in f32 do not overflow.
ALUDEL_HOST_DEVICE constexpr bool IsScale(uint16_t bits) {
  return bits <= (112 + 127) << 7;  // non-negative bf16 values order like their bits
}
inline constexpr uint16_t kNoScale = 0x7f80;  // infinity: of values that are not finite

// The level of a rotated value. A zero vector has step 0 and levels 0. Rounding of the quotient can pass the
// limit by a hair only, which the clamp takes back.
ALUDEL_HOST_DEVICE inline int LevelOf(float x, float step, int bits) {
  const int limit = LevelLimit(bits);
  const int level = step > 0.0f ? static_cast<int>(rintf(x / step)) : 0;
  return level < -limit ? -limit : (level > limit ? limit : level);
}

// The number in the low four bits.
ALUDEL_HOST_DEVICE constexpr int SignedNibble(int nibble) { return ((nibble & 0xf) ^ 8) - 8; }

// x[0, length) <- H x, H the normalized Walsh-Hadamard matrix in Sylvester order. It is orthogonal and its
// own inverse: lengths of errors survive it, and one outlier channel is spread over all of them. `length` is
// a power of two; O(length log length).
void RotateHadamard(float* x, int64_t length);

// One vector of K or V as small integers with one scale: rotated in blocks by RotateHadamard, divided by the
// scale, rounded to [-limit, limit]. Every rotated value is off by at most scale / 2, therefore the vector by
// at most scale / 2 * sqrt(width) in length. Immutable and thread-safe.
class TokenQuantizer {
 public:
  // `bits` is 8 or 4, `width` even.
  TokenQuantizer(int bits, int64_t width);

  int64_t width() const { return width_; }
  // The largest power of two, at most kMaxBlock, that divides the width.
  int64_t block() const { return block_; }
  // Bytes of one vector's codes, without its scale.
  size_t code_bytes() const { return static_cast<size_t>(width_) * bits_ / 8; }
  // Floating-point operations of Decode.
  double decode_flops() const;

  // Writes code_bytes() codes and returns the scale. Leaves the rotated vector in `x` [width]. A vector that
  // holds values that are not finite, or too large for a scale, gives a scale that ValidScale refuses.
  Bf16 Encode(float* x, uint8_t* codes) const;
  // x [width] from codes and a valid scale.
  void Decode(Bf16 scale, const uint8_t* codes, float* x) const;

  static bool ValidScale(Bf16 scale) { return IsScale(scale.bits); }

  // A longer block spreads outliers further but mixes more heads; 128 is one head of most models.
  static constexpr int64_t kMaxBlock = 128;

 private:
  void Rotate(float* x) const;

  int bits_;
  int64_t width_;
  int64_t block_;
};

}  // namespace aludel
