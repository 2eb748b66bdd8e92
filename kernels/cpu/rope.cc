#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace aludel {
namespace {

// A sine and a cosine in multiply-adds, about.
constexpr int64_t kAngleWork = 200;

// cos and sin of one position for every pair. Angles are formed in double: at position 100,000 a float angle
// has lost the digits that the fast-turning pairs live on.
void Angles(const RopeTable& rope, int64_t position, float* cosine, float* sine) {
  for (size_t i = 0; i < rope.inverse_frequency.size(); ++i) {
    const double angle = static_cast<double>(position) * static_cast<double>(rope.inverse_frequency[i]);
    cosine[i] = static_cast<float>(std::cos(angle)) * rope.attention_factor;
    sine[i] = static_cast<float>(std::sin(angle)) * rope.attention_factor;
  }
}

ALUDEL_SIMD void RotateHead(const float* x, const float* cosine, const float* sine, int half, float* out) {
  for (int i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    out[i] = a * cosine[i] - b * sine[i];
    out[i + half] = b * cosine[i] + a * sine[i];
  }
}

ALUDEL_SIMD void RoundRowToBf16(const float* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = RoundToBf16(x[i]);
}

}  // namespace

void CpuOps::Rope(const TensorView& q, int head_dim, const RopeTable& rope,
                  absl::Span<const SequenceRows> sequences, Stream) {
  ALUDEL_CHECK(q.cols % head_dim == 0 && static_cast<int>(rope.inverse_frequency.size()) * 2 == head_dim);
  const int half = head_dim / 2;
  for (const SequenceRows& sequence : sequences) {
    ForRows(sequence.rows, kAngleWork * half + 4 * q.cols, [&](int64_t begin, int64_t end) {
      std::vector<float> cosine(half), sine(half), scratch(q.cols), result(q.cols);
      for (int64_t r = begin; r < end; ++r) {
        Angles(rope, sequence.position_begin + r, cosine.data(), sine.data());
        const float* row = cpu::LoadRow(q, sequence.row_begin + r, scratch.data());
        for (int64_t c = 0; c < q.cols; c += head_dim) {
          RotateHead(row + c, cosine.data(), sine.data(), half, result.data() + c);
        }
        cpu::StoreRow(result.data(), q, sequence.row_begin + r);
      }
    });
  }
}

void CpuOps::RopeWriteKv(const TensorView& k, const TensorView& v, const RopeTable& rope,
                         absl::Span<const SequenceRows> sequences, const PagedKv& kv, Stream) {
  const int kv_dim = kv.kv_heads * kv.head_dim;
  const int half = kv.head_dim / 2;
  ALUDEL_CHECK(k.cols == kv_dim && v.cols == kv_dim && k.rows == v.rows);
  ALUDEL_CHECK(static_cast<int>(rope.inverse_frequency.size()) == half);
  // Page planes seen as one matrix row per (block, head, slot).
  const auto page_row = [&kv](int32_t block, int head, int slot) {
    return (static_cast<int64_t>(block) * kv.kv_heads + head) * kv.block_tokens + slot;
  };
  const TensorView k_plane{kv.k, kv.dtype, INT64_MAX, kv.head_dim, kv.head_dim};
  const TensorView v_plane{kv.v, kv.dtype, INT64_MAX, kv.head_dim, kv.head_dim};
  for (const SequenceRows& sequence : sequences) {
    ForRows(sequence.rows, kAngleWork * half + 8 * kv_dim, [&](int64_t begin, int64_t end) {
      std::vector<float> cosine(half), sine(half), scratch(kv_dim), rounded(kv_dim), rotated(kv_dim);
      for (int64_t r = begin; r < end; ++r) {
        const int64_t position = sequence.position_begin + r;
        const auto index = static_cast<size_t>(position / kv.block_tokens);
        ALUDEL_CHECK(index < sequence.blocks.size());
        const int32_t block = sequence.blocks[index];
        const int slot = static_cast<int>(position % kv.block_tokens);
        Angles(rope, position, cosine.data(), sine.data());
        const float* k_row = cpu::LoadRow(k, sequence.row_begin + r, scratch.data());
        if (kv.dtype == DType::kBf16) {
          RoundRowToBf16(k_row, kv_dim, rounded.data());
          k_row = rounded.data();
        }
        for (int head = 0; head < kv.kv_heads; ++head) {
          RotateHead(k_row + head * kv.head_dim, cosine.data(), sine.data(), half, rotated.data());
          cpu::StoreRow(rotated.data(), k_plane, page_row(block, head, slot));
        }
        const float* v_row = cpu::LoadRow(v, sequence.row_begin + r, scratch.data());
        for (int head = 0; head < kv.kv_heads; ++head) {
          cpu::StoreRow(v_row + head * kv.head_dim, v_plane, page_row(block, head, slot));
        }
      }
    });
  }
}

}  // namespace aludel
