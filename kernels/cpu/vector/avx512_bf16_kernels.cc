#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/vector/micro_kernels.h"

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

// A panel is one stream of memory, and cores of an Intel Xeon with AMX do not look far enough ahead in one: of what the memory of
// two of them gives one row read .54 to .70. As many streams as panels, each asked for 1 KiB ahead, read .97 to 1.04.
constexpr int64_t kStreamAhead = 512;

// kPanels * kCount * 2 sums.
template <int kPanels, int kCount>
void Tiles(const uint16_t* a, const uint16_t* panels, int64_t panel_words, int64_t in, float* sums) {
  __m512 total[kPanels][kCount][kVectors];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      for (int v = 0; v < kVectors; ++v) total[p][r][v] = _mm512_setzero_ps();
    }
  }
  for (int64_t i = 0; i < in; i += 2) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      __m512bh w[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        const uint16_t* const from = panels + p * panel_words + i * kPanelCols + v * 32;
        _mm_prefetch(from + kStreamAhead, _MM_HINT_T0);
        w[v] = (__m512bh)_mm512_loadu_si512(from);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kCount; ++r) {
        int pair;
        __builtin_memcpy(&pair, a + i * kCount + 2 * r, sizeof(pair));
        const auto x = (__m512bh)_mm512_set1_epi32(pair);
        for (int v = 0; v < kVectors; ++v) total[p][r][v] = _mm512_dpbf16_ps(total[p][r][v], x, w[v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
    for (int r = 0; r < kCount; ++r) {
      float* const to = sums + (p * kCount + r) * kPanelCols;
      for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(to + v * 16, total[p][r][v]);
    }
  }
}

template <int kCount>
void TilesInTurn(const uint16_t* a, const uint16_t* panels, int64_t panel_words, int64_t in, float* sums) {
  constexpr int kPanels = kCount <= 3 ? kPanelsAtOnce : kPanelsAtOnce / 2;  // at most 24 sums
  for (int p = 0; p < kPanelsAtOnce; p += kPanels)
    Tiles<kPanels, kCount>(a, panels + p * panel_words, panel_words, in, sums + p * kCount * kPanelCols);
}

void Bf16Panels(const uint16_t* a, int rows, const uint16_t* panels, int64_t panel_words, int64_t in,
                float* sums) {
  static constexpr decltype(&TilesInTurn<1>) kTiles[kFewRows] = {
      TilesInTurn<1>, TilesInTurn<2>, TilesInTurn<3>, TilesInTurn<4>, TilesInTurn<5>, TilesInTurn<6>};
  kTiles[rows - 1](a, panels, panel_words, in, sums);
}

// Other makers' cores are left as they were: on Zen 4 asking ahead only cost with few rows, and streams were not tried there.
bool WantsStreams() {
  __builtin_cpu_init();
  return __builtin_cpu_is("intel");
}

// Sixteen words of `count` rows, at most sixteen: pairs of rows, then of pairs, in words, double words
// and quarters.
void TransposeSixteen(const char* const* rows, int count, int64_t offset, uint32_t* to, int width) {
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) a[r] = _mm512_loadu_si512(rows[r < count ? r : 0] + offset);
#pragma GCC unroll 8
  for (int r = 0; r < 16; r += 2) {
    b[r] = _mm512_unpacklo_epi32(a[r], a[r + 1]);
    b[r + 1] = _mm512_unpackhi_epi32(a[r], a[r + 1]);
  }
  // a[r + i] then holds, in each quarter q, word 4 q + i of rows r to r + 3.
#pragma GCC unroll 4
  for (int r = 0; r < 16; r += 4) {
    a[r] = _mm512_unpacklo_epi64(b[r], b[r + 2]);
    a[r + 1] = _mm512_unpackhi_epi64(b[r], b[r + 2]);
    a[r + 2] = _mm512_unpacklo_epi64(b[r + 1], b[r + 3]);
    a[r + 3] = _mm512_unpackhi_epi64(b[r + 1], b[r + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i low_even = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
    const __m512i high_even = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
    _mm512_mask_storeu_epi32(to + i * width, mask, _mm512_shuffle_i32x4(low_even, high_even, 0x88));
    _mm512_mask_storeu_epi32(to + (i + 4) * width, mask, _mm512_shuffle_i32x4(low_odd, high_odd, 0x88));
    _mm512_mask_storeu_epi32(to + (i + 8) * width, mask, _mm512_shuffle_i32x4(low_even, high_even, 0xdd));
    _mm512_mask_storeu_epi32(to + (i + 12) * width, mask, _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd));
  }
}

void Transpose(const char* const* rows, int count, int words, uint32_t* to, int width) {
  for (int r = 0; r < count; r += 16) {
    const int some = std::min(16, count - r);
    int i = 0;
    for (; i + 16 <= words; i += 16) TransposeSixteen(rows + r, some, 4 * i, to + i * width + r, width);
    if (i == words) continue;
    const char* rest[16];
    for (int k = 0; k < some; ++k) rest[k] = rows[r + k] + 4 * i;
    Avx512Kernels().transpose(rest, some, words - i, to + i * width + r, width);
  }
}

// 32 floats as bf16. Denormal ones become zero, as they are in dot products.
void StoreRounded(__m512 low, __m512 high, uint16_t* out) {
  _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

void RoundBf16(const float* values, int64_t count, uint16_t* out) {
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    StoreRounded(_mm512_loadu_ps(values + i), _mm512_loadu_ps(values + i + 16), out + i);
  }
  for (; i < count; i += 16) {
    const auto mask = static_cast<__mmask16>(count - i < 16 ? (1u << (count - i)) - 1 : 0xffffu);
    const __m512 some = _mm512_maskz_loadu_ps(mask, values + i);
    _mm256_mask_storeu_epi16(out + i, mask, (__m256i)_mm512_cvtneps_pbh(some));
  }
}

__mmask16 FirstOf(int count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1);
}

void FinishF32(const float* sums, int rows, int cols, const float* bias, bool accumulate, float* out,
               int64_t stride) {
  for (int v = 0; v < kVectors; ++v) {
    const __mmask16 some = FirstOf(cols - 16 * v);
    const __m512 added = bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(some, bias + 16 * v);
    for (int r = 0; r < rows; ++r) {
      float* const to = out + r * stride + 16 * v;
      __m512 sum = _mm512_add_ps(_mm512_loadu_ps(sums + r * kPanelCols + 16 * v), added);
      if (accumulate) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(some, to), sum);
      _mm512_mask_storeu_ps(to, some, sum);
    }
  }
}

void FinishBf16(const float* sums, int rows, const float* bias, uint16_t* out, int64_t stride) {
  static_assert(kPanelCols == 32);
  const __m512 low_bias = bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(bias);
  const __m512 high_bias = bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(bias + 16);
  for (int r = 0; r < rows; ++r, sums += kPanelCols, out += stride) {
    StoreRounded(_mm512_add_ps(_mm512_loadu_ps(sums), low_bias),
                 _mm512_add_ps(_mm512_loadu_ps(sums + 16), high_bias), out);
  }
}

}  // namespace

const MicroKernels& Avx512Bf16Kernels() {
  static const MicroKernels kKernels = {"avx512_bf16",
                                        Avx512Kernels().f32_tile,
                                        Bf16Tile,
                                        Avx512VnniKernels().int8_tile,
                                        Avx512VnniKernels().int4_tile,
                                        RoundBf16,
                                        FinishF32,
                                        FinishBf16,
                                        Transpose,
                                        WantsStreams() ? Bf16Panels : nullptr};
  return kKernels;
}

}  // namespace aludel::cpu
