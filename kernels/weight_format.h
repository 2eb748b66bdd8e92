#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "kernels/tensor.h"

namespace aludel {

// How a device keeps the numbers of a weight matrix. kInt8 and kInt4 are integers of that many bits with one
// scale in bf16 for each output and kScaleInputs inputs: fewer bytes to read, and weights rounded once more,
// when they are packed. kFp8 are E4M3 numbers (e4m3.h) with one scale in f32 for each output; a checkpoint's own
// are kept as they are. Not every device has them.
enum class WeightFormat : uint8_t { kF32, kBf16, kInt8, kInt4, kFp8 };

constexpr int64_t kScaleInputs = 32;

constexpr WeightFormat FormatOf(DType dtype) {
  return dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
}

constexpr bool HasScales(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kInt4 || format == WeightFormat::kFp8;
}

constexpr const char* Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kInt4:
      return "int4";
    case WeightFormat::kFp8:
      return "fp8";
  }
  return "unknown";
}

// The format of this name, if there is one.
inline std::optional<WeightFormat> ParseWeightFormat(absl::string_view name) {
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8,
                                    WeightFormat::kInt4, WeightFormat::kFp8}) {
    if (name == Name(format)) return format;
  }
  return std::nullopt;
}

// Bits of one weight, its share of a scale included; kFp8's scales are too few to count.
constexpr double BitsPerWeight(WeightFormat format) {
  constexpr double kScaleBits = 16.0 / kScaleInputs;
  switch (format) {
    case WeightFormat::kF32:
      return 32;
    case WeightFormat::kBf16:
      return 16;
    case WeightFormat::kInt8:
      return 8 + kScaleBits;
    case WeightFormat::kInt4:
      return 4 + kScaleBits;
    case WeightFormat::kFp8:
      return 8;
  }
  return 0;
}

}  // namespace aludel
