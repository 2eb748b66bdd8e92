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
// Panels are aligned to 64 bytes. Every sum runs over the inputs in order in one accumulator: what a row
// gives does not depend on how many others there are, nor on threads.
constexpr int kPanelCols = 32;
constexpr int kTileRows = 12;
constexpr int kInBlock = 32;

struct MicroKernels {
  const char* name;
  // sums[r][c] = sum over i < in of a[i][r] * panel[i][c].
  void (*f32_tile)(const float* a, int rows, const float* panel, int64_t in,
                   float* sums /* [rows][kPanelCols] */);
  void (*bf16_tile)(const uint16_t* a, int rows, const uint16_t* panel, int64_t in,
                    float* sums /* [rows][kPanelCols] */);
  // to[i * width + r] = rows[r][i], for i < words and r < count, in words of 4 bytes, aligned to 2.
  void (*transpose)(const char* const* rows, int count, int words, uint32_t* to, int width);
};

const MicroKernels& PortableKernels();
const MicroKernels& Avx2Kernels();
const MicroKernels& Avx512Kernels();
const MicroKernels& Avx512Bf16Kernels();

}  // namespace aludel::cpu
