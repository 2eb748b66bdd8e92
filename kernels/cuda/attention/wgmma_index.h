#pragma once

#include "kernels/cuda/index.h"

// How tiles of bf16 lie in shared memory for `wgmma.mma_async`, and the descriptors that say so (PTX ISA 9.0,
// "Asynchronous Warpgroup Level Matrix Instructions": "Strides", "Canonical Layouts", "Matrix Descriptor
// Format"; NVIDIA/cutlass says the same in include/cute/arch/mma_sm90_desc.hpp and, above make_gmma_desc, in
// atom/mma_traits_sm90_gmma.hpp). Here is the one layout that the kernels use, the 128-byte swizzle: a tile
// with rows of a head's dimensions is cut into panels of 64 dimensions, so that a panel's row is 128 bytes,
// eight chunks of 16. Eight rows make the pattern of 1024 bytes that repeats; in it, bits 4 to 6 of an
// address (the chunk) are XORed with its bits 7 to 9 (the row). Rows therefore never share banks where a
// product reads eight of them, nor where a copy writes one. A tile begins at a multiple of 1024, which makes
// a descriptor's base offset 0.
namespace aludel::cuda {

constexpr int kPanelElements = 64;
constexpr int kPanelRowBytes = 128;
constexpr int kPatternRows = 8;
constexpr int kPatternBytes = kPatternRows * kPanelRowBytes;

// Where chunk `chunk` (16 bytes, counted through the row's panels) of row `row`
// begins in a tile of kRows rows.
template <int kRows>
ALUDEL_HOST_DEVICE constexpr int SwizzledByte(int row, int chunk) {
  static_assert(kRows % kPatternRows == 0);
  return chunk / 8 * (kRows * kPanelRowBytes) + row * kPanelRowBytes + ((chunk ^ row) & 7) * 16;
}

// The descriptor of a matrix at `address`, each field in units of 16 bytes: bits 0-13 the address, 16-29 the
// leading dimension's byte offset, 32-45 the stride dimension's, 49-51 the base offset, 62-63 the swizzle, of
// which 1 is that of 128 bytes.
ALUDEL_HOST_DEVICE constexpr uint64_t SwizzledMatrix(uint32_t address, uint32_t leading, uint32_t stride) {
  return uint64_t{(address & 0x3ffff) >> 4} | uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 |
         uint64_t{1} << 62;
}

// Rows are the matrix's M or N and dimensions what is summed over ("K-major"): queries and keys in the first
// product. Eight rows to the next eight are a pattern; the leading offset has no meaning here and is 1.
ALUDEL_HOST_DEVICE constexpr uint64_t RowsByDimensions(uint32_t tile) {
  return SwizzledMatrix(tile, 16, kPatternBytes);
}
// To the next 16 dimensions, in the descriptor's units: within a panel's row, or to the next panel. The
// swizzle is of addresses, so that beginning within a pattern is all right.
template <int kRows>
ALUDEL_HOST_DEVICE constexpr uint64_t DimensionStep(int step) {
  return (step / 4 * (kRows * kPanelRowBytes) + step % 4 * 32) / 16;
}

// Rows are what is summed over and dimensions the matrix's N ("MN-major"): values in the second product. The
// leading offset leads to the next panel, the stride to the next eight rows.
template <int kRows>
ALUDEL_HOST_DEVICE constexpr uint64_t DimensionsByRows(uint32_t tile) {
  return SwizzledMatrix(tile, kRows * kPanelRowBytes, kPatternBytes);
}
// To the next 16 rows.
ALUDEL_HOST_DEVICE constexpr uint64_t RowStep(int step) { return step * 2 * kPatternBytes / 16; }

}  // namespace aludel::cuda
