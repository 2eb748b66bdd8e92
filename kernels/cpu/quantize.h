#pragma once

#include <cstdint>

#include "kernels/cpu/packed_matrix.h"

namespace aludel::cpu {

// Rows [begin, end) of a, input blocks [first, last), into what int8_tile and int4_tile take for w: `to` is
// where block 0 of these rows begins.
void QuantizeInputs(const TensorView& a, int64_t begin, int64_t end, int64_t first, int64_t last,
                    const CpuPackedMatrix& w, uint32_t* to);

// Row `row` of host_rows to integers of int8 or int4: `values` [whole blocks] one per byte, from -128 + 1 or
// -8 on, and `scales` one per block of kInBlock inputs.
void QuantizeWeights(const TensorView& host_rows, int64_t row, WeightFormat format, int8_t* values,
                     Bf16* scales);

// `host_rows` (at most kPanelCols) into panel `index` of w, whose format has scales.
void QuantizePanel(const TensorView& host_rows, const CpuPackedMatrix& w, int64_t index);

}  // namespace aludel::cpu
