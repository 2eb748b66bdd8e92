#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/gemm/low_rank.cuh"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/gemm/pack_low_rank.h"
#include "tests/kernels/cuda/aligned_copy.h"

namespace aludel::cuda {
namespace {

// The kernels' own source, run on the host by simt.h and held against a loop in double.

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Part {
  int64_t rank, outputs, out_begin;
  float scale = 1.0f;
  std::vector<float> a = {}, b = {};
};

struct Group {
  std::vector<Part> parts;
  std::vector<int32_t> rows;
};

struct Problem {
  int64_t in, out, rows;
  bool aligned = true;
};

class LowRankKernelTest : public ::testing::Test {
 protected:
  LowRankKernelTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    std::cout << "seed " << seed << "\n";
    random_.seed(seed);
  }

  template <typename T>
  std::vector<float> Random(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) {
      value = normal(random_);
      if constexpr (sizeof(T) == sizeof(Bf16)) value = RoundToBf16(value);
    }
    return values;
  }

  template <typename T>
  static std::vector<T> As(const std::vector<float>& values) {
    std::vector<T> as(values.size());
    std::transform(values.begin(), values.end(), as.begin(), [](float value) {
      if constexpr (sizeof(T) == sizeof(Bf16)) {
        return ToBf16(value);
      } else {
        return value;
      }
    });
    return as;
  }
  static float Wide(float value) { return value; }
  static float Wide(Bf16 value) { return ToFloat(value); }

  // Runs both kernels over `pieces` as CudaOps launches them.
  template <typename T, typename Out>
  void Launch(const std::vector<LowRankPiece>& pieces, const TensorView& x, const TensorView& out) {
    for (const LowRankPiece& piece : pieces) {
      std::vector<float> sums(piece.sums, kNan);
      std::vector<LowRankTile> there = piece.tiles;
      // What a tile does not have is nowhere.
      for (LowRankTile& tile : there) std::fill(tile.rows + tile.count, std::end(tile.rows), 1 << 30);
      const LowRankArgs args{
          there.data(), static_cast<int32_t>(there.size()), piece.most_rank(), piece.most_out_tiles(), x, out,
          sums.data()};
      const auto tiles = static_cast<unsigned>(args.count);
      const auto ranks = static_cast<unsigned>((args.most_rank + kLowRankRanks - 1) / kLowRankRanks);
      simt::Launch({tiles, ranks}, {kShrinkThreads}, kShrinkSharedBytes, random_(), [&](char* shared) {
        if (TakesVectors(x)) {
          ShrinkTile<T, true>(args, reinterpret_cast<float*>(shared));
        } else {
          ShrinkTile<T, false>(args, reinterpret_cast<float*>(shared));
        }
      });
      for (const float sum : sums) ASSERT_FALSE(std::isnan(sum));
      simt::Launch({tiles, static_cast<unsigned>(args.most_out_tiles)}, {kExpandThreads}, kExpandSharedBytes,
                   random_(),
                   [&](char* shared) { ExpandTile<T, Out>(args, reinterpret_cast<float*>(shared)); });
    }
  }

  // Numbers for `groups`; then the kernels' result on them against the formula. Returns the outputs.
  template <typename T, typename Out>
  std::vector<float> Check(const Problem& p, std::vector<Group> groups, size_t most_tiles = 1000,
                           int64_t most_sums = 1 << 20) {
    const int64_t x_stride = p.aligned ? p.in + 8 : p.in + 3, out_stride = p.out + 5;
    std::vector<float> x = Random<T>(p.rows * x_stride);
    const std::vector<float> before = Random<Out>(p.rows * out_stride);
    std::vector<double> expected(before.begin(), before.end()), sizes;
    for (const float value : before) sizes.push_back(1 + std::fabs(double{value}));
    std::vector<bool> has_adapter(p.rows, false);
    std::vector<std::unique_ptr<AlignedCopy<char>>> packed;
    std::vector<LowRankPiece> pieces;
    for (Group& group : groups) {
      std::vector<LowRankPart> parts;
      for (Part& part : group.parts) {
        part.a = Random<T>(part.rank * p.in);
        part.b = Random<T>(part.outputs * part.rank);
        parts.push_back({TensorView::Of(part.a.data(), part.rank, p.in),
                         TensorView::Of(part.b.data(), part.outputs, part.rank), part.scale, part.out_begin});
      }
      const DType dtype = sizeof(T) == sizeof(float) ? DType::kF32 : DType::kBf16;
      const LowRankLayout layout = LayOutLowRank(parts, p.in, dtype);
      packed.push_back(std::make_unique<AlignedCopy<char>>(PackedLowRankBytes(layout, parts)));
      PlanLowRank(layout.At(packed.back()->data()), group.rows, most_tiles, most_sums, &pieces);
      for (const int32_t row : group.rows) {
        has_adapter[row] = true;
        for (const Part& part : group.parts)
          Add(part, p, &x[row * x_stride], &expected[row * out_stride], &sizes[row * out_stride]);
      }
    }
    // Rows without an adapter are never read.
    for (int64_t row = 0; row < p.rows; ++row) {
      if (!has_adapter[row]) std::fill_n(&x[row * x_stride], x_stride, kNan);
    }
    const AlignedCopy<T> inputs(As<T>(x));
    const AlignedCopy<Out> outputs(As<Out>(before));
    const TensorView x_view{inputs.data(), sizeof(T) == 4 ? DType::kF32 : DType::kBf16, p.rows, p.in,
                            x_stride};
    const TensorView out_view{outputs.data(), sizeof(Out) == 4 ? DType::kF32 : DType::kBf16, p.rows, p.out,
                              out_stride};
    EXPECT_EQ(TakesVectors(x_view), p.aligned);
    Launch<T, Out>(pieces, x_view, out_view);
    std::vector<float> found(before.size());
    const double bound = sizeof(Out) == 4 ? 1e-5 : 1.0 / 256;
    for (size_t i = 0; i < found.size(); ++i) {
      found[i] = Wide(outputs.data()[i]);
      EXPECT_LE(std::fabs(found[i] - expected[i]), bound * sizes[i])
          << "row " << i / out_stride << ", output " << i % out_stride << ": " << found[i] << ", want "
          << expected[i];
      if (HasFailure()) return found;
    }
    return found;
  }

  static void Add(const Part& part, const Problem& p, const float* x, double* out, double* sizes) {
    for (int64_t k = 0; k < part.rank; ++k) {
      double sum = 0, size = 0;
      for (int64_t i = 0; i < p.in; ++i) {
        const double product = double{x[i]} * part.a[k * p.in + i];
        sum += product, size += std::fabs(product);
      }
      for (int64_t o = 0; o < part.outputs; ++o) {
        const double weight = double{part.scale} * part.b[o * part.rank + k];
        out[part.out_begin + o] += sum * weight;
        sizes[part.out_begin + o] += std::fabs(size * weight);
      }
    }
  }

  std::mt19937_64 random_;
};

// Groups of 1, 8, 9 and 3 rows that lie anywhere in the batch; rows 1 and 22 have no adapter. Ranks that differ from
// group to group and from part to part, parts that leave outputs out.
std::vector<Group> RaggedGroups(int64_t out) {
  return {{{{16, out, 0, 2.0f}}, {7}},
          {{{8, out / 3, 0, 0.5f}, {64, out / 2, out - out / 2, 1.5f}}, {20, 0, 2, 3, 19, 5, 6, 8}},
          {{{1, 1, out - 1}}, {9, 10, 11, 4, 13, 14, 15, 16, 21}},
          {{{67, out, 0}}, {12, 17, 18}}};
}

TEST_F(LowRankKernelTest, RowsTakeTheUpdatesOfTheirOwnAdapter) {
  for (const Problem& p : {Problem{64, 48, 23}, {264, 515, 23}, {50, 7, 23, false}, {2100, 300, 23, false}}) {
    Check<float, float>(p, RaggedGroups(p.out));
    Check<Bf16, float>(p, RaggedGroups(p.out));
    Check<Bf16, Bf16>(p, RaggedGroups(p.out));
  }
}

TEST_F(LowRankKernelTest, RanksAsAdaptersHaveThem) {
  for (const int64_t rank : {8, 16, 32, 64, 128}) {
    Check<Bf16, float>({512, 256, 9}, {{{{rank, 256, 0}}, {8, 1}}, {{{rank, 128, 128}}, {3}}});
    Check<float, float>({512, 256, 9}, {{{{rank, 256, 0}}, {8, 1}}, {{{rank, 128, 128}}, {3}}});
  }
}

TEST_F(LowRankKernelTest, WhatIsTooMuchForALaunchGoesInSeveral) {
  const Problem p{64, 48, 23};
  Check<float, float>(p, RaggedGroups(p.out), /*most_tiles=*/2);
  Check<float, float>(p, RaggedGroups(p.out), /*most_tiles=*/1000, /*most_sums=*/8 * 72);
}

TEST(LowRankPlan, PiecesHoldWhatALaunchMay) {
  LowRankUpdate wide{}, narrow{};
  wide.rank = 30, narrow.rank = 2, narrow.out_tiles = 5;
  std::vector<int32_t> rows(20);
  std::vector<LowRankPiece> pieces;
  PlanLowRank(wide, rows, /*most_tiles=*/3, /*most_sums=*/400, &pieces);
  PlanLowRank(narrow, rows, 3, 400, &pieces);
  // Tiles of 8, 8 and 4 rows each.
  ASSERT_EQ(pieces.size(), 3);
  EXPECT_EQ(pieces[0].sums, 240);
  EXPECT_EQ(pieces[1].sums, 240 + 120 + 16);
  EXPECT_EQ(pieces[1].tiles[2].sums, 360);
  EXPECT_EQ(pieces[1].most_rank(), 30);
  EXPECT_EQ(pieces[1].most_out_tiles(), 5);
  EXPECT_EQ(pieces[2].sums, 16 + 8);
  EXPECT_EQ(pieces[2].most_rank(), 2);
  EXPECT_EQ(pieces[2].tiles[1].count, 4);
}

}  // namespace
}  // namespace aludel::cuda
