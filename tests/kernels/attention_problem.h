#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <ostream>
#include <random>
#include <vector>

#include "kernels/fp8_pages.h"
#include "kernels/ops.h"

namespace aludel {

// Shapes of one attention call.
struct AttentionCase {
  struct Sequence {
    int64_t rows;
    int64_t past;
  };

  int heads, kv_heads, head_dim;
  int block_tokens;
  int64_t window;
  std::vector<Sequence> sequences;
  bool bf16_rows = false;  // q and out
  bool fp8 = false;        // pages hold numbers that FP8 has
  // Whether rows of q and out begin at multiples of 16 bytes; unset: drawn.
  std::optional<bool> aligned_rows = std::nullopt;
};

inline std::ostream& operator<<(std::ostream& os, const AttentionCase& c) {
  os << c.heads << "/" << c.kv_heads << " heads of " << c.head_dim << ", window " << c.window
     << ", blocks of " << c.block_tokens << ", rows+past";
  for (const auto& s : c.sequences) os << " " << s.rows << "+" << s.past;
  return os;
}

// Random inputs for it on the host, and what should come out. Pages of bf16 lie scattered in their pool, and
// what nobody has written there, or between rows, is NaN.
struct AttentionProblem {
  AttentionProblem(const AttentionCase& c, std::mt19937_64& random);

  int q_dim() const { return c.heads * c.head_dim; }
  size_t plane() const { return k.size(); }
  // The pool as pages of FP8, exactly.
  std::vector<Fp8> Fp8Keys() const { return AsFp8(k, KeyScale(DType::kFp8)); }
  std::vector<Fp8> Fp8Values() const { return AsFp8(v, 1.0f); }
  int64_t Element(const SequenceRows& s, int64_t position, int kv_head) const {
    const int64_t block = s.blocks[position / c.block_tokens];
    return ((block * c.kv_heads + kv_head) * c.block_tokens + position % c.block_tokens) * c.head_dim;
  }
  // In double, of row `row` of a sequence and one head; q is rounded to bf16 first.
  std::vector<double> Expected(const SequenceRows& s, int64_t row, int head) const;
  // Compares every row's results, given as floats [rows, out_stride], and wants NaN beyond the columns.
  // `report` takes a message.
  template <typename Report>
  void Compare(const std::vector<float>& out, const Report& report) const;

  const AttentionCase c;
  AttentionParams params;
  int64_t rows = 0;
  int64_t q_stride, out_stride;         // wider than the columns
  std::vector<int32_t> blocks;          // of all sequences, end to end
  std::vector<SequenceRows> sequences;  // block lists point into `blocks`
  std::vector<Bf16> k, v;               // the pool
  std::vector<float> q;                 // [rows, q_stride]

 private:
  static std::vector<Fp8> AsFp8(const std::vector<Bf16>& pool, float scale) {
    std::vector<Fp8> codes(pool.size());
    std::transform(pool.begin(), pool.end(), codes.begin(),
                   [&](Bf16 value) { return ToFp8(ToFloat(value) * scale); });
    return codes;
  }
};

inline AttentionProblem::AttentionProblem(const AttentionCase& shapes, std::mt19937_64& random) : c(shapes) {
  params = {c.heads, c.kv_heads, c.head_dim, 1.0f / std::sqrt(static_cast<float>(c.head_dim)), c.window};
  const bool aligned = c.aligned_rows.value_or(random() % 2 == 0);
  q_stride = q_dim() + (aligned ? 8 : 3);
  out_stride = q_dim() + (aligned ? 16 : 5);
  int32_t block_count = 1;  // nobody owns block 0
  for (const auto& s : c.sequences) {
    rows += s.rows;
    block_count += static_cast<int32_t>((s.past + s.rows + c.block_tokens - 1) / c.block_tokens);
  }
  for (int32_t b = 1; b < block_count; ++b) blocks.push_back(b);
  std::shuffle(blocks.begin(), blocks.end(), random);
  const Bf16 nan{0x7fff};
  k.assign(int64_t{block_count} * c.kv_heads * c.block_tokens * c.head_dim, nan);
  v = k;
  q.assign(rows * q_stride, std::numeric_limits<float>::quiet_NaN());
  std::normal_distribution<float> normal;
  int64_t row = 0, block = 0;
  for (const auto& s : c.sequences) {
    const int64_t count = (s.past + s.rows + c.block_tokens - 1) / c.block_tokens;
    sequences.push_back({row, s.rows, s.past, absl::MakeConstSpan(blocks).subspan(block, count)});
    for (int64_t p = 0; p < s.past + s.rows; ++p) {
      for (int h = 0; h < c.kv_heads; ++h) {
        const int64_t at = Element(sequences.back(), p, h);
        const auto draw = [&](float scale) {
          const float value = normal(random);
          return ToBf16(c.fp8 ? FromFp8(ToFp8(value * scale)) / scale : value);
        };
        for (int d = 0; d < c.head_dim; ++d) {
          k[at + d] = draw(KeyScale(DType::kFp8));
          v[at + d] = draw(1.0f);
        }
      }
    }
    for (int64_t r = row; r < row + s.rows; ++r) {
      for (int i = 0; i < q_dim(); ++i) q[r * q_stride + i] = 2.0f * normal(random);
    }
    row += s.rows;
    block += count;
  }
}

inline std::vector<double> AttentionProblem::Expected(const SequenceRows& s, int64_t row, int head) const {
  const int kv_head = head / (c.heads / c.kv_heads);
  const int64_t position = s.position_begin + row;
  const int64_t first = c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
  std::vector<double> query;
  for (int d = 0; d < c.head_dim; ++d) {
    query.push_back(RoundToBf16(q[(s.row_begin + row) * q_stride + head * c.head_dim + d]));
  }
  std::vector<double> weights;
  double maximum = -1e300;
  for (int64_t p = first; p <= position; ++p) {
    const Bf16* const key = &k[Element(s, p, kv_head)];
    double dot = 0;
    for (int d = 0; d < c.head_dim; ++d) dot += query[d] * ToFloat(key[d]);
    weights.push_back(dot * params.scale);
    maximum = std::max(maximum, weights.back());
  }
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - maximum);
  std::vector<double> out(c.head_dim, 0.0);
  for (int64_t p = first; p <= position; ++p) {
    const Bf16* const value = &v[Element(s, p, kv_head)];
    for (int d = 0; d < c.head_dim; ++d) out[d] += weights[p - first] / total * ToFloat(value[d]);
  }
  return out;
}

template <typename Report>
void AttentionProblem::Compare(const std::vector<float>& out, const Report& report) const {
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int64_t r = 0; r < sequences[s].rows; ++r) {
      const float* const row = &out[(sequences[s].row_begin + r) * out_stride];
      for (int head = 0; head < c.heads; ++head) {
        const std::vector<double> expected = Expected(sequences[s], r, head);
        for (int d = 0; d < c.head_dim; ++d) {
          const double found = row[head * c.head_dim + d];
          // Probabilities may be rounded to bf16, 2^-9 each at most, of values up to about four; queries,
          // too, which moves scores about as much. A bf16 result is rounded once more.
          const double bound = 0x1p-7 + (c.bf16_rows ? 0x1p-8 : 0x1p-9) * std::fabs(expected[d]);
          if (!(std::fabs(found - expected[d]) <= bound)) {
            report("sequence " + std::to_string(s) + " row " + std::to_string(r) + " head " +
                   std::to_string(head) + " dimension " + std::to_string(d) + ": " + std::to_string(found) +
                   ", want " + std::to_string(expected[d]));
            return;
          }
        }
      }
      for (int64_t i = q_dim(); i < out_stride; ++i) {
        if (std::isnan(row[i])) continue;
        report("wrote beyond the columns of row " + std::to_string(r));
        return;
      }
    }
  }
}

}  // namespace aludel
