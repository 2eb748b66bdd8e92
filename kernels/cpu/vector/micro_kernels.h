#pragma once

#include <cstdint>

namespace aludel::cpu {

// Inner loops that are written once per instruction set and chosen when the device is opened. Their files are
// compiled with that set's flags, so this header and all that they include have no inline functions: the
// linker keeps one copy of such a function, and it might be one that this CPU cannot run.
//
// Weights lie in panels of kPanelCols outputs: f32 as [in][kPanelCols], bf16 as [in / 2][kPanelCols][2], with
// zeros where a panel goes beyond the matrix. oneDNN knows both layouts (BA16a32b, BA16a32b2a), and wants
// `in` padded to a multiple of kInBlock. Inputs are packed alike, kTileRows rows at most: f32 as [in][rows],
// bf16 as [in / 2][rows][2]: rows that lie a power of two apart would push each other out of the L1 cache.
//
// int8 and int4 panels are blocks of kInBlock inputs, one behind the other, so that all is one stream. A
// block is weights, then [kPanelCols] scales in bf16. The weights of int8 are bytes [kInBlock /
// 4][kPanelCols][4], kInt8Offset above their value; those of int4 [kInBlock / 8][kPanelCols][4], where a
// byte's lower half is kInt4Offset above the weight of one input and its upper half that of the fourth input
// after it. Inputs are blocks as well: int8 as [kInBlock / 4][rows][4], then the int32 [rows] that the offset
// makes up for (their sum times minus the offset), then f32 [rows] scales.
//
// Panels are aligned to 64 bytes. Every sum runs over the inputs in order in one accumulator: what a row
// gives does not depend on how many others there are, nor on threads.
constexpr int kPanelCols = 32;
constexpr int kTileRows = 12;
constexpr int kPanelsAtOnce = 4;
constexpr int kFewRows = 6;
constexpr int kInBlock = 32;
constexpr int kInt8Offset = 128;
constexpr int kInt4Offset = 8;
constexpr int kInt8BlockBytes = kPanelCols * (kInBlock + 2);
constexpr int kInt4BlockBytes = kPanelCols * (kInBlock / 2 + 2);
// Words of one row's inputs in a block.
constexpr int kQuantizedWords = kInBlock / 4 + 2;

struct MicroKernels {
  const char* name;
  // sums[r][c] = sum over i < in of a[i][r] * panel[i][c].
  void (*f32_tile)(const float* a, int rows, const float* panel, int64_t in,
                   float* sums /* [rows][kPanelCols] */);
  void (*bf16_tile)(const uint16_t* a, int rows, const uint16_t* panel, int64_t in,
                    float* sums /* [rows][kPanelCols] */);
  // sums[r][c] = sum over blocks of both scales' product times the integers' exact sum.
  void (*int8_tile)(const uint32_t* a, int rows, const uint8_t* panel, int64_t blocks,
                    float* sums /* [rows][kPanelCols] */);
  void (*int4_tile)(const uint32_t* a, int rows, const uint8_t* panel, int64_t blocks,
                    float* sums /* [rows][kPanelCols] */);
  // out[i] = values[i] rounded to bf16, to even. Here and below null stands for the plain loops of rows.cc
  // and gemm.cc.
  void (*round_bf16)(const float* values, int64_t count, uint16_t* out);
  // Columns [0, cols) of a panel's rows: out[r * stride + c] = [out[r * stride + c] +] sums[r][c] + bias[c];
  // no `bias`: null.
  void (*finish_f32)(const float* sums /* [rows][kPanelCols] */, int rows, int cols, const float* bias,
                     bool accumulate, float* out, int64_t stride);
  // Whole panels: out[r * stride + c] = sums[r][c] + bias[c], rounded to bf16.
  void (*finish_bf16)(const float* sums /* [rows][kPanelCols] */, int rows, const float* bias, uint16_t* out,
                      int64_t stride);
  // to[i * width + r] = rows[r][i], for i < words and r < count, in words of 4 bytes, aligned to 2.
  void (*transpose)(const char* const* rows, int count, int words, uint32_t* to, int width);
  // bf16_tile of kPanelsAtOnce panels that lie `panel_words` numbers apart, for at most kFewRows rows; null where one panel
  // after another reads memory as fast.
  void (*bf16_panels)(const uint16_t* a, int rows, const uint16_t* panels, int64_t panel_words, int64_t in,
                      float* sums /* [kPanelsAtOnce][rows][kPanelCols] */) = nullptr;
};

const MicroKernels& PortableKernels();
const MicroKernels& Avx2Kernels();
const MicroKernels& Avx512Kernels();
const MicroKernels& Avx512VnniKernels();
const MicroKernels& Avx512Bf16Kernels();

}  // namespace aludel::cpu
