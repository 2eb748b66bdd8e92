#include "kernels/token_quantizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows.h"

namespace aludel {
namespace {

// What a value costs in the rotation, in multiply-adds, about.
constexpr int64_t kRotationWork = 8;

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

TokenQuantizer::TokenQuantizer(int bits, int64_t width)
    : bits_(bits),
      width_(width),
      block_(std::min(kMaxBlock, int64_t{1} << std::countr_zero(static_cast<uint64_t>(width)))) {
  ALUDEL_CHECK((bits == 8 || bits == 4) && width > 0 && width % 2 == 0);
}

double TokenQuantizer::decode_flops() const {
  // One product with the scale, an addition per level of the rotation, one product to normalize.
  return static_cast<double>(width_) * (2 + std::countr_zero(static_cast<uint64_t>(block_)));
}

void TokenQuantizer::Rotate(float* x) const {
  for (int64_t begin = 0; begin < width_; begin += block_) RotateHadamard(x + begin, block_);
}

Bf16 TokenQuantizer::Encode(float* x, uint8_t* codes) const {
  Rotate(x);
  float largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < width_; ++i) {
    finite = finite && std::isfinite(x[i]);
    largest = std::max(largest, std::fabs(x[i]));
  }
  const Bf16 scale{finite ? ScaleBits(largest, bits_) : kNoScale};
  if (!ValidScale(scale)) return scale;
  const float step = ToFloat(scale);
  const auto level = [&](size_t i) { return static_cast<unsigned>(LevelOf(x[i], step, bits_)); };
  for (size_t i = 0; i < code_bytes(); ++i) {
    codes[i] = static_cast<uint8_t>(bits_ == 8 ? level(i) : (level(2 * i) & 0xfu) | level(2 * i + 1) << 4);
  }
  return scale;
}

void TokenQuantizer::Decode(Bf16 scale, const uint8_t* codes, float* x) const {
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

void CpuOps::QuantizeTokens(const TensorView& x, int bits, uint8_t* scales, uint8_t* codes, Stream) {
  const TokenQuantizer quantizer(bits, x.cols);
  ForRows(x.rows, kRotationWork * x.cols, [&](int64_t begin, int64_t end) {
    std::vector<float> row(x.cols);
    for (int64_t t = begin; t < end; ++t) {
      const float* const values = cpu::LoadRow(x, t, row.data());
      if (values != row.data()) std::copy_n(values, x.cols, row.data());
      const Bf16 scale = quantizer.Encode(row.data(), codes + t * quantizer.code_bytes());
      // Little-endian, wherever we run.
      scales[2 * t] = static_cast<uint8_t>(scale.bits);
      scales[2 * t + 1] = static_cast<uint8_t>(scale.bits >> 8);
    }
  });
}

void CpuOps::DequantizeTokens(const uint8_t* scales, const uint8_t* codes, int bits, const TensorView& x,
                              Stream) {
  const TokenQuantizer quantizer(bits, x.cols);
  ForRows(x.rows, kRotationWork * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const Bf16 scale{static_cast<uint16_t>(scales[2 * t] | scales[2 * t + 1] << 8)};
      quantizer.Decode(scale, codes + t * quantizer.code_bytes(), x.f32() + t * x.stride);
    }
  });
}

}  // namespace aludel
