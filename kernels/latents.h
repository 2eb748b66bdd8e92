#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/host_device.h"

// Quantized latents (runtime/codec/FORMAT.md, kind aludel): what a code is and where it lies, for the host
// and for kernels.
namespace aludel {

// Where the codes of one latent lie: token after token without gaps, `width` bits each, least significant bit
// first, from byte `offset` on. A code's next 8 bits, where it has any, are bytes from `high_offset` on.
struct LatentPlane {
  uint32_t offset = 0;
  uint32_t high_offset = 0;  // 0: none
  uint8_t bits = 0;          // codes lie in [-2^(bits-1), 2^(bits-1) - 1]; at most 16
  uint8_t width = 0;         // 8 where there is a high_offset
  uint16_t unused = 0;       // instead of padding: tables of planes that say the same are the same bytes

  // Bits of a token in both planes together.
  ALUDEL_HOST_DEVICE int stored_bits() const { return width + (high_offset > 0 ? 8 : 0); }
};
static_assert(std::has_unique_object_representations_v<LatentPlane>);

// Of z * inverse_step: to the nearest, ties to even, then into the range; NaN becomes 0. Without calls or
// branches, so that loops of it become vectors.
ALUDEL_HOST_DEVICE inline int32_t LatentCode(float z, float inverse_step, int bits) {
  // Added to a number below 2^22 it leaves the nearest integer in the low bits.
  constexpr float kRounder = 0x1.8p23f;
  constexpr int32_t kRounderBits = 0x4b400000;
  const auto limit = static_cast<float>(1 << (bits - 1));
  float scaled = z * inverse_step;
  scaled = scaled >= -limit ? scaled : (scaled < -limit ? -limit : 0.0f);
  scaled = scaled <= limit - 1 ? scaled : limit - 1;
  return __builtin_bit_cast(int32_t, scaled + kRounder) - kRounderBits;
}

// The number in the low `bits` bits, in two's complement.
ALUDEL_HOST_DEVICE inline int32_t SignExtend(uint32_t code, int bits) {
  const uint32_t sign = 1u << (bits - 1);
  return static_cast<int32_t>(((code & (2 * sign - 1)) ^ sign) - sign);
}

// One latent of tokens [0, tokens): z[t * stride] to its plane among `bytes`, all in host memory.
void WriteLatent(const float* z, int64_t stride, int64_t tokens, float inverse_step, const LatentPlane& plane,
                 uint8_t* bytes);

// z[t * stride] = step * code of token first + t, for t in [0, tokens). Reads the bytes of these codes alone.
void ReadLatent(const uint8_t* bytes, const LatentPlane& plane, int64_t first, int64_t tokens, float step,
                float* z, int64_t stride);

}  // namespace aludel
