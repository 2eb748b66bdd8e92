#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vector/simd.h"

namespace aludel {
namespace cpu {

// Angles of a batch's rows, one sequence after the other.
struct AngleRows {
  std::vector<float> frequency;  // that they were made for, as all that follows
  float factor = 0;
  std::vector<std::pair<int64_t, int64_t>> positions;  // first and count of every sequence
  std::vector<float> cosine, sine;                     // [rows, half]

  // False where they are already there, perhaps with others behind them: of a step with rows that only read, every layer
  // asks for the writers' and then for all.
  bool Reset(const RopeTable& rope, absl::Span<const SequenceRows> sequences) {
    const auto asked = [](const SequenceRows& s) { return std::make_pair(s.position_begin, s.rows); };
    const bool same = factor == rope.attention_factor && positions.size() >= sequences.size() &&
                      absl::MakeConstSpan(frequency) == rope.inverse_frequency &&
                      std::equal(sequences.begin(), sequences.end(), positions.begin(),
                                 [&](const SequenceRows& s, const auto& p) { return asked(s) == p; });
    if (same) return false;
    frequency.assign(rope.inverse_frequency.begin(), rope.inverse_frequency.end());
    factor = rope.attention_factor;
    positions.clear();
    int64_t rows = 0;
    for (const SequenceRows& sequence : sequences) {
      positions.push_back(asked(sequence));
      rows += sequence.rows;
    }
    cosine.resize(rows * frequency.size());
    sine.resize(cosine.size());
    return true;
  }
};

}  // namespace cpu
namespace {

using cpu::AngleRows;

// A sine and a cosine in multiply-adds, about.
constexpr int64_t kAngleWork = 20;

// cos(x) and sin(x) for x >= 0, in straight-line arithmetic that compilers vectorize. x = n pi/2 + r, with
// pi/2 as three parts of 33 bits so that n times a part is exact below n = 2^20 (Cody & Waite 1980), beyond
// off by about what x is as a double, and the polynomials of fdlibm's k_sin.c and k_cos.c on [-pi/4, pi/4].
inline void CosSin(double x, double* cosine, double* sine) {
  const double n = __builtin_floor(x * 6.36619772367581382433e-01 + 0.5);
  const double r =
      x - n * 1.57079632673412561417e+00 - n * 6.07710050630396597660e-11 - n * 2.02226624879595063154e-21;
  const double z = r * r;
  double s = 1.58969099521155010221e-10;
  s = s * z - 2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z - 1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z - 1.66666666666666324348e-01;
  s = r + r * z * s;
  double c = -1.13596475577881948265e-11;
  c = c * z + 2.08757232129817482790e-09;
  c = c * z - 2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z - 1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  c = 1.0 - 0.5 * z + z * z * c;
  // n modulo 4 as a double, because not every instruction set turns vectors of doubles into integers.
  const double quarter = n - 4.0 * __builtin_floor(n * 0.25);
  const bool swap = quarter == 1.0 || quarter == 3.0;
  const double wide_cosine = swap ? s : c;
  const double wide_sine = swap ? c : s;
  *cosine = quarter == 1.0 || quarter == 2.0 ? -wide_cosine : wide_cosine;
  *sine = quarter >= 2.0 ? -wide_sine : wide_sine;
}

// cos and sin of one position for every pair. Angles are formed in double: at position 100,000 a float angle
// has lost the digits that the fast-turning pairs live on.
ALUDEL_SIMD void Angles(const float* inverse_frequency, int64_t half, float factor, int64_t position,
                        float* cosine, float* sine) {
  const auto at = static_cast<double>(position);
  for (int64_t i = 0; i < half; ++i) {
    double c, s;
    CosSin(at * static_cast<double>(inverse_frequency[i]), &c, &s);
    cosine[i] = static_cast<float>(c) * factor;
    sine[i] = static_cast<float>(s) * factor;
  }
}

inline float Wide(float x) { return x; }
inline float Wide(Bf16 x) { return ToFloat(x); }
inline void Store(float x, float* to) { *to = x; }
inline void Store(float x, Bf16* to) { *to = ToBf16(x); }
// Pages of FP8 are the only ones, and only keys are rotated into them.
inline void Store(float x, Fp8* to) { *to = ToFp8(x * KeyScale(DType::kFp8)); }

// Rotates a head, which is two halves.
template <typename T, typename Out>
inline __attribute__((always_inline)) void RotateHead(const T* __restrict x, const float* __restrict cosine,
                                                      const float* __restrict sine, int half,
                                                      Out* __restrict out) {
  for (int i = 0; i < half; ++i) {
    const float a = Wide(x[i]);
    const float b = Wide(x[i + half]);
    Store(a * cosine[i] - b * sine[i], out + i);
    Store(b * cosine[i] + a * sine[i], out + i + half);
  }
}

inline __attribute__((always_inline)) void RotateRow(const float* x, int64_t heads, const float* cosine,
                                                     const float* sine, int half, float* out) {
  for (int64_t head = 0; head < heads; ++head, x += 2 * half, out += 2 * half) {
    RotateHead(x, cosine, sine, half, out);
  }
}

// Rotates the heads of a row. Loops of the usual lengths have it fixed.
ALUDEL_SIMD void RotateHeads(const float* x, int64_t heads, const float* cosine, const float* sine, int half,
                             float* out) {
  switch (half) {
    case 16:
      return RotateRow(x, heads, cosine, sine, 16, out);
    case 32:
      return RotateRow(x, heads, cosine, sine, 32, out);
    case 64:
      return RotateRow(x, heads, cosine, sine, 64, out);
    default:
      return RotateRow(x, heads, cosine, sine, half, out);
  }
}

// Of the calling thread: every layer of a pass asks for the same ones. (Tasks of other threads must not
// name it.)
AngleRows& CallersAngles() {
  thread_local AngleRows angles;
  return angles;
}

// Consecutive rows of one block, as they are rounded before rotation, and where they go: head after head, so that
// what is written is a stream.
template <typename T, typename Page>
struct BlockRows {
  const T* rows;  // [count] of [heads * head_dim], `stride` apart
  int64_t stride;
  int64_t count;
  Page* page;           // row of head 0 and the first of these tokens
  int64_t head_stride;  // from a head's page to the next head's
  int heads;
  int head_dim;
};

template <typename T, typename Page>
inline __attribute__((always_inline)) void RotateRows(const BlockRows<T, Page>& r, const float* cosine,
                                                      const float* sine, int half) {
  for (int head = 0; head < r.heads; ++head) {
    for (int64_t t = 0; t < r.count; ++t) {
      RotateHead(r.rows + t * r.stride + head * 2 * half, cosine + t * half, sine + t * half, half,
                 r.page + head * r.head_stride + t * 2 * half);
    }
  }
}

// Rotates rows on their way to a page. Loops of the usual lengths have it fixed.
template <typename T, typename Page>
inline __attribute__((always_inline)) void RotateToPage(const BlockRows<T, Page>& r, const float* cosine,
                                                        const float* sine) {
  switch (r.head_dim) {
    case 32:
      return RotateRows(r, cosine, sine, 16);
    case 64:
      return RotateRows(r, cosine, sine, 32);
    case 128:
      return RotateRows(r, cosine, sine, 64);
    default:
      return RotateRows(r, cosine, sine, r.head_dim / 2);
  }
}
ALUDEL_SIMD void RotateToPageF32(const BlockRows<float, float>& r, const float* cosine, const float* sine) {
  RotateToPage(r, cosine, sine);
}
ALUDEL_SIMD void RotateToPageBf16(const BlockRows<Bf16, Bf16>& r, const float* cosine, const float* sine) {
  RotateToPage(r, cosine, sine);
}
ALUDEL_SIMD void RotateToPageFp8(const BlockRows<Bf16, Fp8>& r, const float* cosine, const float* sine) {
  RotateToPage(r, cosine, sine);
}
void Rotate(const BlockRows<float, float>& r, const float* cosine, const float* sine) {
  RotateToPageF32(r, cosine, sine);
}
void Rotate(const BlockRows<Bf16, Bf16>& r, const float* cosine, const float* sine) {
  RotateToPageBf16(r, cosine, sine);
}
void Rotate(const BlockRows<Bf16, Fp8>& r, const float* cosine, const float* sine) {
  RotateToPageFp8(r, cosine, sine);
}

ALUDEL_SIMD void NarrowToPage(const BlockRows<Bf16, Fp8>& r) {
  for (int head = 0; head < r.heads; ++head) {
    for (int64_t t = 0; t < r.count; ++t) {
      const Bf16* const from = r.rows + t * r.stride + head * r.head_dim;
      Fp8* const to = r.page + head * r.head_stride + t * r.head_dim;
      for (int d = 0; d < r.head_dim; ++d) to[d] = ToFp8(ToFloat(from[d]));
    }
  }
}
void CopyToPage(const BlockRows<Bf16, Fp8>& r) { NarrowToPage(r); }

template <typename T>
void CopyToPage(const BlockRows<T, T>& r) {
  constexpr int64_t kPiece = 32;  // bytes; a call for so little costs more than the copy
  const int64_t bytes = r.head_dim * static_cast<int64_t>(sizeof(T));
  for (int head = 0; head < r.heads; ++head) {
    for (int64_t t = 0; t < r.count; ++t) {
      const auto* from = reinterpret_cast<const char*>(r.rows + t * r.stride + head * r.head_dim);
      auto* const to = reinterpret_cast<char*>(r.page + head * r.head_stride + t * r.head_dim);
      int64_t at = 0;
      for (; at + kPiece <= bytes; at += kPiece) std::memcpy(to + at, from + at, kPiece);
      if (at < bytes) std::memcpy(to + at, from + at, bytes - at);
    }
  }
}

// Rows [begin, begin + count) of `view` as T, converted in `scratch` where they are of the other type.
template <typename T>
const T* RowsAs(const TensorView& view, int64_t begin, int64_t count, std::vector<T>* scratch,
                int64_t* stride) {
  constexpr bool kWide = sizeof(T) == sizeof(float);
  if ((view.dtype == DType::kF32) == kWide) {
    *stride = view.stride;
    return static_cast<const T*>(view.data) + begin * view.stride;
  }
  *stride = view.cols;
  scratch->resize(std::max<size_t>(scratch->size(), count * view.cols));
  for (int64_t t = 0; t < count; ++t) {
    if constexpr (kWide) {
      cpu::LoadBf16(view.bf16() + (begin + t) * view.stride, view.cols, scratch->data() + t * view.cols);
    } else {
      cpu::StoreBf16(view.f32() + (begin + t) * view.stride, view.cols, scratch->data() + t * view.cols);
    }
  }
  return scratch->data();
}

// Rows [begin, end) of a sequence, as T, into pages. `cosine` and `sine` are those of row 0.
template <typename T, typename Page>
void WriteRows(const TensorView& k, const TensorView& v, const SequenceRows& sequence, const PagedKv& kv,
               const float* cosine, const float* sine, int64_t begin, int64_t end) {
  std::vector<T> scratch;
  const int half = kv.head_dim / 2;
  const int64_t head_stride = int64_t{kv.block_tokens} * kv.head_dim;
  for (int64_t r = begin, count; r < end; r += count) {
    const int64_t position = sequence.position_begin + r;
    const auto index = static_cast<size_t>(position / kv.block_tokens);
    ALUDEL_CHECK(index < sequence.blocks.size());
    const int64_t slot = position % kv.block_tokens;
    count = std::min<int64_t>(end - r, kv.block_tokens - slot);
    const int64_t first = int64_t{sequence.blocks[index]} * kv.kv_heads * head_stride + slot * kv.head_dim;
    BlockRows<T, Page> rows{nullptr,     0,           count,      static_cast<Page*>(kv.k) + first,
                            head_stride, kv.kv_heads, kv.head_dim};
    rows.rows = RowsAs(k, sequence.row_begin + r, count, &scratch, &rows.stride);
    Rotate(rows, cosine + r * half, sine + r * half);
    rows.page = static_cast<Page*>(kv.v) + first;
    rows.rows = RowsAs(v, sequence.row_begin + r, count, &scratch, &rows.stride);
    CopyToPage(rows);
  }
}

}  // namespace

const AngleRows& CpuOps::MakeAngles(const RopeTable& rope, absl::Span<const SequenceRows> sequences) {
  AngleRows& angles = CallersAngles();
  if (!angles.Reset(rope, sequences)) return angles;
  const auto half = static_cast<int64_t>(rope.inverse_frequency.size());
  int64_t first = 0;
  for (const SequenceRows& sequence : sequences) {
    ForRows(sequence.rows, kAngleWork * half, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        Angles(rope.inverse_frequency.data(), half, rope.attention_factor, sequence.position_begin + r,
               angles.cosine.data() + (first + r) * half, angles.sine.data() + (first + r) * half);
      }
    });
    first += sequence.rows;
  }
  return angles;
}

void CpuOps::Rope(const TensorView& q, int head_dim, const RopeTable& rope,
                  absl::Span<const SequenceRows> sequences, Stream) {
  ALUDEL_CHECK(q.cols % head_dim == 0 && static_cast<int>(rope.inverse_frequency.size()) * 2 == head_dim);
  const int half = head_dim / 2;
  const AngleRows& angles = MakeAngles(rope, sequences);
  int64_t first = 0;
  for (const SequenceRows& sequence : sequences) {
    ForRows(sequence.rows, 4 * q.cols, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch(q.cols), result(q.cols);
      for (int64_t r = begin; r < end; ++r) {
        const float* const cosine = angles.cosine.data() + (first + r) * half;
        const float* const sine = angles.sine.data() + (first + r) * half;
        const float* row = cpu::LoadRow(q, sequence.row_begin + r, scratch.data());
        RotateHeads(row, q.cols / head_dim, cosine, sine, half, result.data());
        cpu::StoreRow(result.data(), q, sequence.row_begin + r);
      }
    });
    first += sequence.rows;
  }
}

void CpuOps::RopeWriteKv(const TensorView& k, const TensorView& v, const RopeTable& rope,
                         absl::Span<const SequenceRows> sequences, const PagedKv& kv, Stream) {
  const int kv_dim = kv.kv_heads * kv.head_dim;
  const int half = kv.head_dim / 2;
  ALUDEL_CHECK(k.cols == kv_dim && v.cols == kv_dim && k.rows == v.rows);
  ALUDEL_CHECK(static_cast<int>(rope.inverse_frequency.size()) == half);
  const AngleRows& angles = MakeAngles(rope, sequences);
  int64_t first = 0;
  for (const SequenceRows& sequence : sequences) {
    const float* const cosine = angles.cosine.data() + first * half;
    const float* const sine = angles.sine.data() + first * half;
    ForRows(sequence.rows, 8 * kv_dim, [&](int64_t begin, int64_t end) {
      const auto write = kv.dtype == DType::kF32    ? &WriteRows<float, float>
                         : kv.dtype == DType::kBf16 ? &WriteRows<Bf16, Bf16>
                                                    : &WriteRows<Bf16, Fp8>;
      write(k, v, sequence, kv, cosine, sine, begin, end);
    });
    first += sequence.rows;
  }
}

}  // namespace aludel
