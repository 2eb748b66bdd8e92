#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/tensor.h"

namespace aludel {

// x[0, length) <- H x, H the normalised Walsh-Hadamard matrix in Sylvester order. It is orthogonal and its
// own inverse: lengths of errors survive it, and one outlier channel is spread over all of them. `length` is
// a power of two; O(length log length).
void RotateHadamard(float* x, int64_t length);

// One vector of K or V as small integers with one scale: rotated in blocks by RotateHadamard, divided by the
// scale, rounded to [-limit, limit]. Every rotated value is off by at most scale / 2, therefore the vector by
// at most scale / 2 * sqrt(width) in length. Immutable and thread-safe.
class TokenQuantiser {
 public:
  // `bits` is 8 or 4, `width` even.
  TokenQuantiser(int bits, int64_t width);

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

  // From 0 to 2^112: whatever the codes, 128 of them in f32 do not overflow.
  static bool ValidScale(Bf16 scale);

  // A longer block spreads outliers further but mixes more heads; 128 is one head of most models.
  static constexpr int64_t kMaxBlock = 128;

 private:
  void Rotate(float* x) const;

  int bits_;
  int limit_;  // 127 or 7
  int64_t width_;
  int64_t block_;
};

}  // namespace aludel
