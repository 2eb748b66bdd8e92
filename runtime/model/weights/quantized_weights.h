#pragma once

#include "runtime/model/weights/stored_matrix.h"

namespace aludel {

// The quantized layouts that StoredMatrix::Open knows. `rows` are outputs, `cols` inputs, as in MODULE.weight
// of an unquantized checkpoint.

// MODULE.weight F8_E4M3 [rows, cols] with MODULE.weight_scale_inv (as DeepSeek and Qwen publish, a scale per
// block) or MODULE.weight_scale (per tensor or per row): W = weight * scale. Both names hold the factor that
// one multiplies with.
absl::StatusOr<std::unique_ptr<StoredMatrix>> OpenFp8Matrix(const ModelFiles& files,
                                                            const QuantizationConfig& quantization,
                                                            const std::string& module, int64_t rows,
                                                            int64_t cols);

// AutoAWQ's GEMM layout: qweight I32 [cols, rows / 8], qzeros I32 [groups, rows / 8], scales [groups, rows];
// W[o][i] = (q[i][o] - z[i / group][o]) * scale[i / group][o]. Nibble n of a word, from the lowest, is its
// output (0, 2, 4, 6, 1, 3, 5, 7)[n].
absl::StatusOr<std::unique_ptr<StoredMatrix>> OpenAwqMatrix(const ModelFiles& files,
                                                            const QuantizationConfig& quantization,
                                                            const std::string& module, int64_t rows,
                                                            int64_t cols);

// AutoGPTQ's layout: qweight I32 [cols / 8, rows], qzeros I32 [groups, rows / 8], scales [groups, rows], and
// g_idx I32 [cols] with the group of each input (absent: consecutive groups);
// W[o][i] = (q[i][o] - ((z[g][o] + zero_offset) mod 16)) * scale[g][o]. Nibbles in order.
absl::StatusOr<std::unique_ptr<StoredMatrix>> OpenGptqMatrix(const ModelFiles& files,
                                                             const QuantizationConfig& quantization,
                                                             const std::string& module, int64_t rows,
                                                             int64_t cols);

}  // namespace aludel
