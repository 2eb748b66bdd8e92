#include "runtime/codec/token_quantiser.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/check.h"

namespace aludel {
namespace {

constexpr uint16_t kBf16Infinity = 0x7f80;
constexpr uint16_t kMaxScale = (112 + 127) << 7;  // 2^112; non-negative bf16 values order like their bits

// The smallest bf16 that is at least `value` (not negative): with a scale rounded down, the largest value
// would not fit its code.
Bf16 RoundUpToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return {static_cast<uint16_t>((bits >> 16) + ((bits & 0xffffu) != 0 ? 1 : 0))};
}

// The two's complement number in the low four bits.
int SignedNibble(uint8_t nibble) { return static_cast<int>((nibble & 0xfu) ^ 8u) - 8; }

}  // namespace

void RotateHadamard(float* x, int64_t length) {
  ALUDEL_CHECK(length > 0 && std::has_single_bit(static_cast<uint64_t>(length)));
  for (int64_t half = 1; half < length; half *= 2) {
    for (int64_t begin = 0; begin < length; begin += 2 * half) {
      float* low = x + begin;
      float* high = low + half;
      for (int64_t i = 0; i < half; ++i) {
        const float sum = low[i] + high[i];
        high[i] = low[i] - high[i];
        low[i] = sum;
      }
    }
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(length));
  for (int64_t i = 0; i < length; ++i) x[i] *= norm;
}

TokenQuantiser::TokenQuantiser(int bits, int64_t width)
    : bits_(bits),
      limit_(bits == 8 ? 127 : 7),
      width_(width),
      block_(std::min(kMaxBlock, int64_t{1} << std::countr_zero(static_cast<uint64_t>(width)))) {
  ALUDEL_CHECK((bits == 8 || bits == 4) && width > 0 && width % 2 == 0);
}

double TokenQuantiser::decode_flops() const {
  // One product with the scale, an addition per level of the rotation, one product to normalise.
  return static_cast<double>(width_) * (2 + std::countr_zero(static_cast<uint64_t>(block_)));
}

void TokenQuantiser::Rotate(float* x) const {
  for (int64_t begin = 0; begin < width_; begin += block_) RotateHadamard(x + begin, block_);
}

Bf16 TokenQuantiser::Encode(float* x, uint8_t* codes) const {
  Rotate(x);
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < width_; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::max(largest, std::fabs(x[i]));
  }
  if (!finite) return {kBf16Infinity};
  const Bf16 scale = RoundUpToBf16(largest / static_cast<float>(limit_));
  if (!ValidScale(scale)) return scale;
  const float step = ToFloat(scale);
  const auto code = [&](int64_t i) {
    // A zero vector has step 0 and codes 0. Rounding of the quotient can pass the limit by a hair only, which
    // the clamp takes back.
    const int64_t level = step > 0 ? std::lrint(x[i] / step) : 0;
    return static_cast<uint8_t>(std::clamp<int64_t>(level, -limit_, limit_));
  };
  for (size_t i = 0; i < code_bytes(); ++i) {
    codes[i] = bits_ == 8 ? code(static_cast<int64_t>(i))
                          : static_cast<uint8_t>((code(2 * i) & 0xfu) | (code(2 * i + 1) << 4));
  }
  return scale;
}

void TokenQuantiser::Decode(Bf16 scale, const uint8_t* codes, float* x) const {
  const float step = ToFloat(scale);
  if (bits_ == 8) {
    for (int64_t i = 0; i < width_; ++i) x[i] = step * static_cast<float>(static_cast<int8_t>(codes[i]));
  } else {
    for (int64_t i = 0; i < width_; i += 2) {
      x[i] = step * static_cast<float>(SignedNibble(codes[i / 2]));
      x[i + 1] = step * static_cast<float>(SignedNibble(codes[i / 2] >> 4));
    }
  }
  Rotate(x);
}

bool TokenQuantiser::ValidScale(Bf16 scale) { return scale.bits <= kMaxScale; }

}  // namespace aludel
