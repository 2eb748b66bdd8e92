#include <immintrin.h>

#include "kernels/cpu/micro_kernels.h"

namespace aludel::cpu {
namespace {

constexpr int kVectors = kPanelCols / 16;

// With five rows and more the sums keep the core busy for longer than its own prefetchers look ahead. Asking
// for weights 8 KiB ahead, into the L2 cache, then reads most: on two Zen 4 cores 49 GB/s of 63 with 8 rows
// (40 without, 43 into L1). With few rows it only costs.
constexpr int64_t kAhead = 4096;
constexpr int kFirstPrefetched = 5;

// 24 sums, 2 weights and a broadcast at most, in 32 registers.
template <int kCount>
void Tile(const uint16_t* a, const uint16_t* panel, int64_t in, float* sums) {
  __m512 total[kCount][kVectors];
#pragma GCC unroll 12
  for (int r = 0; r < kCount; ++r) {
    for (int v = 0; v < kVectors; ++v) total[r][v] = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < in; i += 2) {
    __m512bh w[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const uint16_t* from = panel + i * kPanelCols + v * 32;
      w[v] = (__m512bh)_mm512_loadu_si512(from);
      if (kCount >= kFirstPrefetched) _mm_prefetch(from + kAhead, _MM_HINT_T1);
    }
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + i * kCount + 2 * r, sizeof(pair));
      const auto x = (__m512bh)_mm512_set1_epi32(pair);
      for (int v = 0; v < kVectors; ++v) total[r][v] = _mm512_dpbf16_ps(total[r][v], x, w[v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kCount; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(sums + r * kPanelCols + v * 16, total[r][v]);
  }
}

void Bf16Tile(const uint16_t* a, int rows, const uint16_t* panel, int64_t in, float* sums) {
  static constexpr decltype(&Tile<1>) kTiles[kTileRows] = {Tile<1>, Tile<2>,  Tile<3>,  Tile<4>,
                                                           Tile<5>, Tile<6>,  Tile<7>,  Tile<8>,
                                                           Tile<9>, Tile<10>, Tile<11>, Tile<12>};
  kTiles[rows - 1](a, panel, in, sums);
}

}  // namespace

const MicroKernels& Avx512Bf16Kernels() {
  static const MicroKernels kKernels = {"avx512_bf16", Avx512Kernels().f32_tile, Bf16Tile};
  return kKernels;
}

}  // namespace aludel::cpu
