#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/quantize.h"
#include "kernels/cuda/gemm/skinny_index.h"

namespace aludel::cuda {

// Row `row` of host_rows, f32 or bf16, as skinny_index.h lays rows out: to the same integers as on the CPU.
// `bytes` [ScaledRowBytes], `scales` [RunsOf * kRunGroups].
inline void PackScaledRow(const TensorView& host_rows, int64_t row, WeightFormat format, char* bytes,
                          Bf16* scales) {
  const int64_t padded = RunsOf(host_rows.cols) * kRunInputs;
  std::vector<int8_t> values(padded, 0);
  std::fill_n(scales, padded / kScaleInputs, Bf16{});
  cpu::QuantizeWeights(host_rows, row, format, values.data(), scales);
  std::fill_n(bytes, ScaledRowBytes(host_rows.cols, format), char{0});
  for (int64_t k = 0; k < padded; ++k) {
    if (format == WeightFormat::kInt8) {
      bytes[Int8Byte(k)] = static_cast<char>(values[k]);
    } else {
      bytes[Int4Byte(k)] |= static_cast<char>((values[k] & 15) << (Int4IsHigh(k) ? 4 : 0));
    }
  }
}

}  // namespace aludel::cuda
