#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/mma_attention.cuh"

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/attention_plan.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/aligned_copy.h"

namespace aludel::cuda {
namespace {

// The kernels' own source, run on the host by simt.h and held against a loop in double.

// A case and the GPU it shall run on.
struct Imagined {
  // Blocks that it runs at once: many make splits.
  int64_t blocks = 1;
  int64_t partial_floats = 1 << 24;
  // Above 0: what is launched is for sequences that end anywhere up to there.
  int64_t positions = 0;
};

class MmaAttentionTest : public ::testing::Test {
 protected:
  MmaAttentionTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  template <typename Shape>
  void Check(const AttentionCase& c, const Imagined& gpu = {});

  std::mt19937_64 random_;
};

template <typename Shape>
void MmaAttentionTest::Check(const AttentionCase& c, const Imagined& gpu) {
  SCOPED_TRACE(testing::Message() << c << ", on " << gpu.blocks);
  AttentionProblem problem(c, random_);
  const AlignedCopy<Bf16> k(problem.k), v(problem.v);
  std::vector<int64_t> first_token;
  std::vector<SequenceEntry> entries;
  for (const SequenceRows& s : problem.sequences) {
    first_token.push_back(s.row_begin);
    entries.push_back({s.row_begin, s.rows, s.position_begin, s.blocks.data() - problem.blocks.data()});
  }
  const AttentionKernel kernel{Shape::kQueries, 64, gpu.blocks, 64, gpu.partial_floats, gpu.positions};
  const AttentionPlan plan =
      PlanAttention(problem.sequences, problem.params, kernel, 1, std::numeric_limits<int64_t>::max());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const int64_t partial_floats =
      plan.first_unit.back() * c.kv_heads * Shape::kQueries * PartialStride(c.head_dim);
  ASSERT_TRUE(!plan.splits_keys || partial_floats <= gpu.partial_floats);
  std::vector<float> partial(plan.splits_keys ? partial_floats : 0, nan);
  std::vector<float> out(problem.rows * problem.out_stride, nan);
  std::vector<Bf16> narrow_q(problem.q.size()), narrow_out(out.size(), ToBf16(nan));
  std::transform(problem.q.begin(), problem.q.end(), narrow_q.begin(), ToBf16);

  AttentionArgs args;
  args.q = {c.bf16_rows ? static_cast<void*>(narrow_q.data()) : problem.q.data(),
            c.bf16_rows ? DType::kBf16 : DType::kF32, problem.rows, problem.q_dim(), problem.q_stride};
  args.out = {c.bf16_rows ? static_cast<void*>(narrow_out.data()) : out.data(), args.q.dtype, problem.rows,
              problem.q_dim(), problem.out_stride};
  args.scale = problem.params.scale;
  args.window = c.window;
  args.table = {first_token.data(), entries.data(), problem.blocks.data(), static_cast<int>(entries.size()),
                problem.rows};
  args.work = {plan.tiling, plan.first_unit.data(), plan.first_tile.data(), plan.splits.data(),
               &plan.split_keys};
  args.kv = {k.data(), v.data(), DType::kBf16, c.block_tokens, c.kv_heads, c.head_dim};
  args.partial = partial.data();

  const auto kv_heads = static_cast<unsigned>(c.kv_heads);
  simt::Launch({static_cast<unsigned>(plan.units), kv_heads}, {Shape::kThreads}, Shape::kSharedBytes,
               random_(), [&](char* shared) { AttendUnit<Shape>(args, shared); });
  if (plan.splits_keys) {
    simt::Launch({static_cast<unsigned>(plan.tiles), kv_heads, static_cast<unsigned>(plan.most_queries)},
                 {128}, 0, random_(), [&](char*) { CombineSplits(args, Shape::kQueries); });
  }
  if (c.bf16_rows) std::transform(narrow_out.begin(), narrow_out.end(), out.begin(), ToFloat);
  problem.Compare(out, [](const std::string& what) { FAIL() << what; });
}

TEST_F(MmaAttentionTest, PrefillAttendsWithEveryHeadSize) {
  Check<PrefillShape<64>>({4, 2, 64, 16, 0, {{70, 0}}});
  Check<PrefillShape<96>>({3, 1, 96, 16, 0, {{50, 9}}});
  Check<PrefillShape<128>>({4, 1, 128, 16, 0, {{40, 100}}});
  Check<PrefillShape<256>>({2, 1, 256, 16, 0, {{37, 31}}});
}

TEST_F(MmaAttentionTest, PrefillFillsUpHeadsOfOddSizesWithZeros) {
  Check<PrefillShape<64>>({2, 2, 40, 16, 0, {{33, 0}}});
  Check<PrefillShape<96>>({2, 1, 80, 16, 0, {{20, 64}}, true});
  Check<PrefillShape<256>>({1, 1, 136, 16, 0, {{3, 0}}});
}

TEST_F(MmaAttentionTest, PrefillTakesAnyGroupAndManySequences) {
  Check<PrefillShape<64>>({7, 1, 64, 16, 0, {{1, 0}, {17, 64}, {2, 129}, {40, 3}}});
  Check<PrefillShape<64>>({6, 2, 64, 8, 0, {{64, 64}, {65, 0}}, true});
  Check<PrefillShape<64>>({150, 1, 64, 16, 0, {{2, 5}}});
}

TEST_F(MmaAttentionTest, PrefillSeesASlidingWindowOnly) {
  Check<PrefillShape<64>>({2, 1, 64, 16, 1, {{70, 130}}});
  Check<PrefillShape<64>>({2, 1, 64, 16, 9, {{150, 0}}});
  Check<PrefillShape<64>>({4, 1, 64, 5, 100, {{40, 170}, {3, 400}}});
}

TEST_F(MmaAttentionTest, PrefillSplitsALongPast) {
  Check<PrefillShape<64>>({4, 1, 64, 16, 0, {{5, 300}}}, {100});
  Check<PrefillShape<128>>({2, 1, 128, 16, 0, {{70, 200}, {1, 0}}, true}, {100});
  Check<PrefillShape<64>>({2, 2, 64, 16, 150, {{80, 300}}}, {100});
}

TEST_F(MmaAttentionTest, DecodeAttendsWithEveryHeadSize) {
  Check<DecodeShape<64>>({4, 2, 64, 16, 0, {{1, 0}, {1, 62}, {1, 63}, {1, 64}, {1, 200}}});
  Check<DecodeShape<96>>({3, 1, 96, 16, 0, {{1, 77}, {1, 15}}, true});
  Check<DecodeShape<128>>({8, 2, 128, 16, 0, {{1, 130}, {1, 3}}});
  Check<DecodeShape<256>>({2, 1, 256, 16, 0, {{1, 70}, {1, 0}}});
  Check<DecodeShape<64>>({2, 2, 24, 16, 0, {{1, 50}}});
}

TEST_F(MmaAttentionTest, DecodeTakesSeveralRowsAndAnyGroup) {
  Check<DecodeShape<64>>({4, 1, 64, 16, 0, {{4, 61}, {2, 0}, {3, 128}}});
  Check<DecodeShape<64>>({40, 1, 64, 16, 0, {{1, 90}}});
  Check<DecodeShape<64>>({5, 1, 64, 1, 0, {{3, 33}}});
}

TEST_F(MmaAttentionTest, DecodeSplitsKeysAndJoinsThem) {
  Check<DecodeShape<64>>({4, 2, 64, 16, 0, {{1, 500}, {1, 10}, {1, 128}}}, {1000});
  Check<DecodeShape<128>>({4, 1, 128, 16, 0, {{1, 333}}, true}, {1000});
  Check<DecodeShape<256>>({3, 1, 256, 16, 0, {{2, 190}}}, {1000});
  Check<DecodeShape<64>>({4, 1, 64, 16, 100, {{1, 400}, {4, 1000}}}, {1000});
  Check<DecodeShape<64>>({34, 2, 64, 16, 0, {{1, 400}}}, {1000});
}

// As repeated work is launched: with blocks for as many splits as such sequences may have.
TEST_F(MmaAttentionTest, BlocksBeyondTheLastUnitDoNothing) {
  const Imagined bucket{1000, 1 << 24, 1024};
  Check<DecodeShape<64>>({4, 2, 64, 16, 0, {{1, 0}, {1, 63}, {1, 64}, {1, 700}, {1, 1023}}}, bucket);
  Check<DecodeShape<64>>({4, 2, 64, 16, 0, {{1, 5}, {1, 60}}}, bucket);
  Check<DecodeShape<128>>({4, 1, 128, 16, 0, {{1, 5}, {1, 513}}, true}, bucket);
  Check<DecodeShape<256>>({3, 1, 256, 16, 0, {{1, 31}, {1, 190}}}, bucket);
  Check<DecodeShape<64>>({4, 1, 64, 16, 100, {{1, 7}, {1, 400}, {1, 1000}}}, bucket);
  Check<DecodeShape<64>>({34, 2, 64, 16, 0, {{1, 130}, {1, 3}}}, bucket);
  Check<DecodeShape<64>>({4, 1, 64, 16, 0, {{1, 200}, {1, 900}}}, {40, 1 << 24, 1024});
  Check<PrefillShape<64>>({4, 1, 64, 16, 0, {{5, 300}, {1, 0}, {40, 9}}}, bucket);
}

// The five results of splits that fit are 5 * 16 * 66 floats.
TEST_F(MmaAttentionTest, SplitsAreAsFewAsTheirResultsHaveRoomFor) {
  Check<DecodeShape<64>>({1, 1, 64, 16, 0, {{1, 600}}}, {1000, 5 * 16 * 66});
  Check<DecodeShape<64>>({1, 1, 64, 16, 0, {{1, 600}}}, {1000, 0});
}

}  // namespace
}  // namespace aludel::cuda
