#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/attention/scalar_attention.cuh"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/aligned_copy.h"
#include "tests/kernels/cuda/attention/attention_check.h"

namespace aludel::cuda {
namespace {

// The kernel's own source, run on the host by simt.h, against a loop in double.
class ScalarAttentionKernelTest : public ::testing::Test {
 protected:
  ScalarAttentionKernelTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  template <int kQueries, int kDims>
  void Check(const AttentionCase& c) {
    SCOPED_TRACE(testing::Message() << c);
    AttentionProblem problem(c, random_);
    ForgetUnseen(problem);
    const std::vector<float> out = Run<kQueries, kDims>(problem);
    problem.Compare(out, [](const std::string& what) { FAIL() << what; });
  }

  template <int kQueries, int kDims>
  std::vector<float> Run(AttentionProblem& problem) {
    const AttentionCase& c = problem.c;
    std::vector<int64_t> first_token, first_tile;
    std::vector<SequenceEntry> entries;
    const QueryTiling tiling = MakeQueryTiling(c.heads / c.kv_heads, kScalarWarps * kQueries);
    int64_t tiles = 0;
    for (const SequenceRows& s : problem.sequences) {
      first_token.push_back(s.row_begin);
      first_tile.push_back(tiles);
      entries.push_back({s.row_begin, s.rows, s.position_begin, s.blocks.data() - problem.blocks.data()});
      tiles += TileCount(tiling, s.rows);
    }
    const AlignedCopy<Bf16> k(problem.k), v(problem.v);
    const AlignedCopy<Fp8> fp8_k(problem.Fp8Keys()), fp8_v(problem.Fp8Values());
    std::transform(problem.q.begin(), problem.q.end(), problem.q.begin(),
                   RoundToBf16);  // as the reference does
    const AlignedCopy<float> q(problem.q);
    std::vector<float> out(problem.rows * problem.out_stride, std::numeric_limits<float>::quiet_NaN());
    const SequenceTable table{first_token.data(), entries.data(), problem.blocks.data(),
                              static_cast<int>(entries.size()), problem.rows};
    KvPlanes kv{k.data(), v.data(), DType::kBf16, c.block_tokens, c.kv_heads, c.head_dim};
    if (c.fp8) kv.k = fp8_k.data(), kv.v = fp8_v.data(), kv.dtype = DType::kFp8;
    const float scale = problem.params.scale / KeyScale(kv.dtype);
    simt::Launch({static_cast<unsigned>(tiles), static_cast<unsigned>(c.kv_heads)}, {kScalarWarps * 32},
                 ScalarSharedBytes(kScalarWarps * kQueries, c.head_dim), random_(), [&](char* shared) {
                   const auto attend = [&](auto page) {
                     AttendTile<float, float, decltype(page), kQueries, kDims>(
                         q.data(), problem.q_stride, out.data(), problem.out_stride, scale, c.window, table,
                         tiling, first_tile.data(), kv, reinterpret_cast<float4*>(shared));
                   };
                   c.fp8 ? attend(Fp8{}) : attend(Bf16{});
                 });
    return out;
  }

  std::mt19937_64 random_;
};

TEST_F(ScalarAttentionKernelTest, DecodesWithHeadsOfAnySize) {
  Check<1, 4>({4, 2, 40, 16, 0, {{1, 0}, {1, 31}, {1, 32}, {1, 77}}});
  Check<1, 4>({3, 1, 7, 5, 0, {{1, 33}}});
  Check<1, 8>({2, 1, 200, 16, 0, {{1, 50}}});
}

TEST_F(ScalarAttentionKernelTest, TakesPagesOfFp8) {
  Check<1, 4>({4, 2, 40, 16, 0, {{1, 0}, {1, 31}, {1, 77}}, false, true});
  Check<8, 4>({3, 1, 18, 5, 20, {{21, 0}, {3, 40}}, false, true});
}

TEST_F(ScalarAttentionKernelTest, PrefillsTilesThatAreNotFull) {
  Check<8, 4>({2, 1, 36, 16, 0, {{21, 0}, {3, 40}, {1, 0}}});
  Check<8, 4>({40, 1, 20, 16, 0, {{2, 9}}});
  Check<8, 8>({1, 1, 130, 16, 0, {{35, 3}}});
}

// The last key fits every query far better than any other does, and its value is no number: rows before it see neither.
TEST_F(ScalarAttentionKernelTest, NothingOfALaterRowIsSeen) {
  const AttentionCase c{1, 1, 24, 16, 0, {{9, 5}}};
  AttentionProblem problem(c, random_);
  const SequenceRows& s = problem.sequences[0];
  for (int64_t r = 0; r < s.rows; ++r) {
    for (int d = 0; d < c.head_dim; ++d) problem.q[r * problem.q_stride + d] += 3.0f;
  }
  const int64_t last = problem.Element(s, 13, 0);
  std::fill_n(problem.k.begin() + last, c.head_dim, ToBf16(100.0f));
  std::fill_n(problem.v.begin() + last, c.head_dim, ToBf16(std::numeric_limits<float>::quiet_NaN()));
  const std::vector<float> out = Run<8, 4>(problem);
  for (int64_t r = 0; r + 1 < s.rows; ++r) {
    const std::vector<double> expected = problem.Expected(s, r, 0);
    for (int d = 0; d < c.head_dim; ++d)
      ASSERT_NEAR(out[r * problem.out_stride + d], expected[d], 0x1p-6) << r;
  }
}

TEST_F(ScalarAttentionKernelTest, SeesASlidingWindowOnly) {
  Check<1, 4>({2, 1, 24, 16, 9, {{1, 100}, {1, 3}}});
  Check<8, 4>({2, 1, 24, 16, 40, {{30, 70}}});
  Check<8, 4>({1, 1, 24, 4, 1, {{40, 20}}});
}

}  // namespace
}  // namespace aludel::cuda
