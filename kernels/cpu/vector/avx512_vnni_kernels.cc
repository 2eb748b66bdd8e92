#include <immintrin.h>

#include <utility>

#include "kernels/cpu/vector/micro_kernels.h"

namespace aludel::cpu {
namespace {

constexpr int kQuads = kInBlock / 4;

// A panel's width. Members and expanded packs, where arrays and loops would do: GCC 12 keeps such sums in
// registers through the nest below, an array's in memory.
struct Wide {
  __m512i left, right;
};
struct Floats {
  __m512 left, right;
};
static_assert(2 * sizeof(Wide::left) == 4 * kPanelCols);

Wide Load(const uint8_t* from) { return {_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64)}; }
Wide And(const Wide& x, __m512i mask) {
  return {_mm512_and_si512(x.left, mask), _mm512_and_si512(x.right, mask)};
}

// Weights of eight inputs, four and four.
struct Int8 {
  static constexpr int kBlockBytes = kInt8BlockBytes;
  static constexpr int kEightBytes = 8 * kPanelCols;
  static void LoadEight(const uint8_t* from, Wide* first, Wide* second) {
    *first = Load(from);
    *second = Load(from + kEightBytes / 2);
  }
};

struct Int4 {
  static constexpr int kBlockBytes = kInt4BlockBytes;
  static constexpr int kEightBytes = 4 * kPanelCols;
  static void LoadEight(const uint8_t* from, Wide* first, Wide* second) {
    const __m512i low = _mm512_set1_epi8(0x0f);
    const Wide both = Load(from);
    *first = And(both, low);
    *second = And({_mm512_srli_epi16(both.left, 4), _mm512_srli_epi16(both.right, 4)}, low);
  }
};

void AddProducts(const Wide& weights, uint32_t inputs, Wide* dots) {
  const __m512i x = _mm512_set1_epi32(static_cast<int>(inputs));
  dots->left = _mm512_dpbusd_epi32(dots->left, weights.left, x);
  dots->right = _mm512_dpbusd_epi32(dots->right, weights.right, x);
}

Floats LoadScales(const uint8_t* from) {
  const auto widen = [](const uint8_t* narrow) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(narrow));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  };
  return {widen(from), widen(from + 32)};
}

// sums [kPanelCols] += (dots + offset) * scales * scale
void AddScaled(const Wide& dots, const Floats& scales, uint32_t offset, uint32_t scale, float* sums) {
  const __m512i less = _mm512_set1_epi32(static_cast<int>(offset));
  const __m512 left_dots = _mm512_cvtepi32_ps(_mm512_add_epi32(dots.left, less));
  const __m512 right_dots = _mm512_cvtepi32_ps(_mm512_add_epi32(dots.right, less));
  const __m512 row = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(scale)));
  const __m512 left = _mm512_mul_ps(scales.left, row), right = _mm512_mul_ps(scales.right, row);
  _mm512_storeu_ps(sums, _mm512_fmadd_ps(left_dots, left, _mm512_loadu_ps(sums)));
  _mm512_storeu_ps(sums + 16, _mm512_fmadd_ps(right_dots, right, _mm512_loadu_ps(sums + 16)));
}

// Prefetching, which bf16 wants from five rows on, only costs here (8 rows of int8, one core: 138 billion
// products a second without, 70 to 96 with).
template <typename Format, int... kRow>
void Tile(std::integer_sequence<int, kRow...>, const uint32_t* a, const uint8_t* panel, int64_t blocks,
          float* sums) {
  constexpr int kCount = sizeof...(kRow);
  __builtin_memset(sums, 0, kCount * kPanelCols * sizeof(float));
  for (int64_t block = 0; block < blocks; ++block) {
    Wide dots[kCount] = {};
    for (int q = 0; q < kQuads; q += 2) {
      Wide first, second;
      Format::LoadEight(panel, &first, &second);
      (AddProducts(first, a[q * kCount + kRow], &dots[kRow]), ...);
      (AddProducts(second, a[(q + 1) * kCount + kRow], &dots[kRow]), ...);
      panel += Format::kEightBytes;
    }
    const Floats scales = LoadScales(panel);
    // Totals stay in the L1 cache. Without this fence GCC takes all of them out of the loop, and spills.
    asm volatile("" ::: "memory");
    (AddScaled(dots[kRow], scales, a[kQuads * kCount + kRow], a[(kQuads + 1) * kCount + kRow],
               sums + kRow * kPanelCols),
     ...);
    a += kQuantizedWords * kCount;
    panel += Format::kBlockBytes - kQuads / 2 * Format::kEightBytes;
  }
}

template <typename Format, int kCount>
void Rows(const uint32_t* a, const uint8_t* panel, int64_t blocks, float* sums) {
  Tile<Format>(std::make_integer_sequence<int, kCount>(), a, panel, blocks, sums);
}

template <typename Format>
void Panel(const uint32_t* a, int rows, const uint8_t* panel, int64_t blocks, float* sums) {
  static constexpr decltype(&Rows<Format, 1>) kTiles[kTileRows] = {
      Rows<Format, 1>, Rows<Format, 2>,  Rows<Format, 3>,  Rows<Format, 4>,
      Rows<Format, 5>, Rows<Format, 6>,  Rows<Format, 7>,  Rows<Format, 8>,
      Rows<Format, 9>, Rows<Format, 10>, Rows<Format, 11>, Rows<Format, 12>};
  kTiles[rows - 1](a, panel, blocks, sums);
}

}  // namespace

const MicroKernels& Avx512VnniKernels() {
  static const MicroKernels kKernels = {
      "avx512_vnni",           Avx512Kernels().f32_tile, Avx512Kernels().bf16_tile, Panel<Int8>, Panel<Int4>,
      /*round_bf16=*/nullptr,
      /*finish_f32=*/nullptr,
      /*finish_bf16=*/nullptr, Avx512Kernels().transpose};
  return kKernels;
}

}  // namespace aludel::cpu
