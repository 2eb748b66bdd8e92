#pragma once

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/aligned_copy.h"
#include "tests/kernels/cuda/simt.h"

namespace aludel::cuda {

// A case and the GPU it shall run on.
struct Imagined {
  // Blocks that it runs at once: many make splits.
  int64_t blocks = 1;
  int64_t partial_floats = 1 << 24;
  // Above 0: what is launched is for sequences that end anywhere up to there.
  int64_t positions = 0;
  // Blocks, where each takes one unit after the other; 0: one for each unit of each kv head.
  unsigned launched = 0;
};

// Pages of positions that no row sees any more may be others': NaN.
inline void ForgetUnseen(AttentionProblem& problem) {
  const Bf16 nan{0x7fff};
  for (const SequenceRows& s : problem.sequences) {
    for (int64_t p = 0; p < FirstVisible(s.position_begin, problem.c.window); ++p) {
      for (int h = 0; h < problem.c.kv_heads; ++h) {
        const int64_t at = problem.Element(s, p, h);
        std::fill_n(problem.k.begin() + at, problem.c.head_dim, nan);
        std::fill_n(problem.v.begin() + at, problem.c.head_dim, nan);
      }
    }
  }
}

// Attention kernels' own source, run on the host by simt.h and held against a loop in double. Include it
// behind the kernels' .cuh.
class SimulatedAttention : public ::testing::Test {
 protected:
  SimulatedAttention() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  // `attend` runs a unit of Shape, given the arguments and shared memory. joins_itself: its last block does what else
  // another kernel does.
  template <typename Shape, typename Attend>
  void CheckUnits(const AttentionCase& c, const Imagined& gpu, int key_tile, const Attend& attend,
                  bool joins_itself = false);

  std::mt19937_64 random_;
};

template <typename Shape, typename Attend>
void SimulatedAttention::CheckUnits(const AttentionCase& c, const Imagined& gpu, int key_tile,
                                    const Attend& attend, bool joins_itself) {
  SCOPED_TRACE(testing::Message() << c << ", on " << gpu.blocks << ", " << gpu.launched << " launched");
  AttentionProblem problem(c, random_);
  ForgetUnseen(problem);
  const AlignedCopy<Bf16> k(problem.k), v(problem.v);
  const AlignedCopy<Fp8> fp8_k(problem.Fp8Keys()), fp8_v(problem.Fp8Values());
  std::vector<int64_t> first_token;
  std::vector<SequenceEntry> entries;
  for (const SequenceRows& s : problem.sequences) {
    first_token.push_back(s.row_begin);
    entries.push_back({s.row_begin, s.rows, s.position_begin, s.blocks.data() - problem.blocks.data()});
  }
  const AttentionKernel kernel{Shape::kQueries, key_tile,           gpu.blocks,
                               key_tile,        gpu.partial_floats, gpu.positions};
  const AttentionPlan plan =
      PlanAttention(problem.sequences, problem.params, kernel, 1, std::numeric_limits<int64_t>::max());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const int64_t partial_floats =
      plan.first_unit.back() * c.kv_heads * Shape::kQueries * PartialStride(c.head_dim);
  ASSERT_TRUE(!plan.splits_keys || partial_floats <= gpu.partial_floats);
  std::vector<float> partial(plan.splits_keys ? partial_floats : 0, nan);
  // Rows may begin anywhere, however far they are apart.
  const auto shift = static_cast<int64_t>(c.aligned_rows.has_value() ? 0 : random_() % 2);
  std::vector<float> q(shift), out(shift + problem.rows * problem.out_stride, nan);
  q.insert(q.end(), problem.q.begin(), problem.q.end());
  std::vector<Bf16> narrow_q(q.size()), narrow_out(out.size(), ToBf16(nan));
  std::transform(q.begin(), q.end(), narrow_q.begin(), ToBf16);

  AttentionArgs args;
  args.q = {c.bf16_rows ? static_cast<void*>(narrow_q.data() + shift) : q.data() + shift,
            c.bf16_rows ? DType::kBf16 : DType::kF32, problem.rows, problem.q_dim(), problem.q_stride};
  args.out = {c.bf16_rows ? static_cast<void*>(narrow_out.data() + shift) : out.data() + shift, args.q.dtype,
              problem.rows, problem.q_dim(), problem.out_stride};
  args.scale = problem.params.scale / KeyScale(c.fp8 ? DType::kFp8 : DType::kBf16);
  args.window = c.window;
  args.table = {first_token.data(), entries.data(), problem.blocks.data(), static_cast<int>(entries.size()),
                problem.rows};
  args.work = {plan.tiling, plan.first_unit.data(), plan.first_tile.data(), plan.splits.data(),
               &plan.split_keys};
  args.kv = {k.data(), v.data(), DType::kBf16, c.block_tokens, c.kv_heads, c.head_dim};
  if (c.fp8) args.kv.k = fp8_k.data(), args.kv.v = fp8_v.data(), args.kv.dtype = DType::kFp8;
  args.partial = partial.data();
  // As the last block of a tile leaves them.
  std::vector<uint32_t> arrived(plan.tiles * c.kv_heads, 0);
  args.arrived = joins_itself ? arrived.data() : nullptr;

  const auto kv_heads = static_cast<unsigned>(c.kv_heads);
  const unsigned blocks = gpu.launched > 0 ? gpu.launched : static_cast<unsigned>(plan.units) * kv_heads;
  simt::Launch({blocks}, {Shape::kThreads}, Shape::kSharedBytes, random_(),
               [&](char* shared) { attend(args, shared); });
  for (const uint32_t count : arrived) ASSERT_EQ(count, 0u);
  if (joins_itself) {
    // What a block has left for another is fenced by each of its threads, and by each that reads it.
    int64_t blocks = 0;
    for (size_t s = 0; s < entries.size(); ++s) {
      const int64_t units = plan.first_unit[s + 1] - plan.first_unit[s];
      if (plan.splits[s] > 1) blocks += units + units / plan.splits[s];
    }
    ASSERT_EQ(simt::FenceCount(), static_cast<uint64_t>(blocks * c.kv_heads * Shape::kThreads));
  }
  if (plan.splits_keys && !joins_itself) {
    simt::Launch({static_cast<unsigned>(plan.tiles), kv_heads, static_cast<unsigned>(plan.most_queries)},
                 {128}, 0, random_(), [&](char*) { CombineSplits(args, Shape::kQueries); });
  }
  if (c.bf16_rows) std::transform(narrow_out.begin(), narrow_out.end(), out.begin(), ToFloat);
  out.erase(out.begin(), out.begin() + shift);
  problem.Compare(out, [](const std::string& what) { FAIL() << what; });
}

}  // namespace aludel::cuda
