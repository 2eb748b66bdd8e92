#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/check.h"

namespace aludel {

// kFp8 is of KV caches alone, see fp8_pages.h: no TensorView has it.
enum class DType : uint8_t { kF32, kBf16, kFp8 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : dtype == DType::kBf16 ? 2 : 1; }
constexpr const char* Name(DType dtype) {
  return dtype == DType::kF32 ? "f32" : dtype == DType::kBf16 ? "bf16" : "fp8";
}

// bfloat16 as stored: the upper half of an IEEE-754 binary32.
struct Bf16 {
  uint16_t bits = 0;
};
static_assert(sizeof(Bf16) == 2);

inline float ToFloat(Bf16 value) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even. A NaN stays a (quiet) NaN.
inline Bf16 ToBf16(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline float RoundToBf16(float value) { return ToFloat(ToBf16(value)); }

// A row-major matrix in device memory; owns nothing. `stride` counts elements from row to row.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  static TensorView Of(float* data, int64_t rows, int64_t cols) {
    return {data, DType::kF32, rows, cols, cols};
  }
  static TensorView Of(Bf16* data, int64_t rows, int64_t cols) {
    return {data, DType::kBf16, rows, cols, cols};
  }

  float* f32() const {
    ALUDEL_CHECK(dtype == DType::kF32);
    return static_cast<float*>(data);
  }
  Bf16* bf16() const {
    ALUDEL_CHECK(dtype == DType::kBf16);
    return static_cast<Bf16*>(data);
  }
  bool contiguous() const { return stride == cols; }

  // Rows [begin, begin + count).
  TensorView Rows(int64_t begin, int64_t count) const {
    ALUDEL_CHECK(begin >= 0 && count >= 0 && begin + count <= rows);
    return {static_cast<char*>(data) + begin * stride * static_cast<int64_t>(SizeOf(dtype)), dtype, count,
            cols, stride};
  }
  // Columns [begin, begin + count) of every row.
  TensorView Cols(int64_t begin, int64_t count) const {
    ALUDEL_CHECK(begin >= 0 && count >= 0 && begin + count <= cols);
    return {static_cast<char*>(data) + begin * static_cast<int64_t>(SizeOf(dtype)), dtype, rows, count,
            stride};
  }
};

}  // namespace aludel
