#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/gemm/batch_gemm.cuh"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/aligned_copy.h"

namespace aludel::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  int rows, in, out;
  int blocks;
  bool accumulate = false;
  bool bias = false;
  bool bf16_out = false;
};

std::vector<float> Widen(const std::vector<Bf16>& values) {
  std::vector<float> wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(), ToFloat);
  return wide;
}

std::vector<Bf16> Narrow(const std::vector<float>& values) {
  std::vector<Bf16> narrow(values.size());
  std::transform(values.begin(), values.end(), narrow.begin(), ToBf16);
  return narrow;
}

// The kernel's own source, run on the host by simt.h and held against a loop in double.
class BatchGemmTest : public ::testing::Test {
 protected:
  BatchGemmTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  std::vector<float> Random(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  // Rows of so many numbers, and `gap` that are none behind each.
  static std::vector<Bf16> Spread(const std::vector<float>& numbers, int rows, int in, int gap) {
    std::vector<float> wide(static_cast<size_t>(rows) * (in + gap), kNan);
    for (int r = 0; r < rows; ++r) std::copy_n(&numbers[size_t(r) * in], in, &wide[size_t(r) * (in + gap)]);
    return Narrow(wide);
  }

  // Runs c.blocks blocks over the arguments, which lack the cut and the room for pieces, and looks at what they leave there.
  static void Run(const Case& c, BatchArgs args, uint64_t seed);
  void Check(const Case& c);

  std::mt19937_64 random_;
};

int CountPieces(const BatchCut& cut, int tile) {
  return cut.BlockOf((tile + 1) * cut.steps - 1) - cut.BlockOf(tile * cut.steps) + 1;
}

void BatchGemmTest::Run(const Case& c, BatchArgs args, uint64_t seed) {
  args.cut = {static_cast<int32_t>(BatchTiles(c.out)), (c.in + kBatchInputs - 1) / kBatchInputs, c.blocks};
  ASSERT_LE(c.blocks, args.cut.tiles * args.cut.steps);
  const AlignedCopy<float> pieces(
      std::vector<float>(size_t(c.blocks) * kBatchPieces * kBatchPieceBytes / sizeof(float), kNan));
  std::vector<uint32_t> arrived(args.cut.tiles, 0);
  args.pieces = pieces.data();
  args.arrived = arrived.data();
  const auto launch = [&](auto body, int row_tiles) {
    simt::Launch({static_cast<unsigned>(c.blocks)}, {kBatchThreads}, BatchSharedBytes(row_tiles), seed,
                 [&](char* shared) { body(args, shared); });
  };
  if (c.rows <= 16) {
    launch(BatchBlock<2>, 2);
  } else if (c.rows <= 32) {
    launch(BatchBlock<4>, 4);
  } else {
    launch(BatchBlock<8>, 8);
  }
  for (const uint32_t count : arrived) ASSERT_EQ(count, 0u);
  // What a block has left for another is fenced by each of its threads, and by each that reads it.
  int fences = 0;
  for (int tile = 0; tile < args.cut.tiles; ++tile) {
    if (const int count = CountPieces(args.cut, tile); count > 1) fences += count + 1;
  }
  ASSERT_EQ(simt::FenceCount(), static_cast<uint64_t>(fences) * kBatchThreads);
}

void BatchGemmTest::Check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.in << " to " << c.out << ", " << c.blocks
                                  << " blocks");
  const AlignedCopy<Bf16> w(Narrow(Random(size_t(c.out) * c.in)));
  const std::vector<float> a = Widen(Narrow(Random(size_t(c.rows) * c.in)));
  constexpr int kGap = 8;
  const AlignedCopy<Bf16> a_there(Spread(a, c.rows, c.in, kGap));
  const AlignedCopy<float> bias(Random(c.out));
  const int64_t stride = c.out + 3;  // with canaries behind the columns
  std::vector<float> start(c.rows * stride, kNan);
  if (c.accumulate) {
    for (int r = 0; r < c.rows; ++r) {
      for (int o = 0; o < c.out; ++o) start[r * stride + o] = RoundToBf16(Random(1)[0]);
    }
  }
  std::vector<float> out = start;
  std::vector<Bf16> narrow = Narrow(start);
  BatchArgs args{};
  args.w = w.data();
  args.a = a_there.data();
  args.a_stride = c.in + kGap;
  args.in = c.in;
  args.bias = c.bias ? bias.data() : nullptr;
  args.accumulate = c.accumulate;
  args.out = {c.bf16_out ? static_cast<void*>(narrow.data()) : out.data(),
              c.bf16_out ? DType::kBf16 : DType::kF32, c.rows, c.out, stride};
  ASSERT_NO_FATAL_FAILURE(Run(c, args, random_()));
  if (c.bf16_out) out = Widen(narrow);
  for (int r = 0; r < c.rows; ++r) {
    for (int o = 0; o < c.out; ++o) {
      double sum = (c.bias ? bias.data()[o] : 0.0) + (c.accumulate ? start[r * stride + o] : 0.0);
      double size = 1.0;
      for (int k = 0; k < c.in; ++k) {
        const double product = double{a[size_t(r) * c.in + k]} * ToFloat(w.data()[size_t(o) * c.in + k]);
        sum += product;
        size += std::fabs(product);
      }
      ASSERT_NEAR(out[r * stride + o], sum, 1e-6 * size + (c.bf16_out ? 0x1p-8 * std::fabs(sum) : 0.0))
          << "row " << r << " output " << o;
    }
    for (int64_t o = c.out; o < stride; ++o) ASSERT_TRUE(std::isnan(out[r * stride + o]));
  }
}

// Blocks with tiles of their own, and tiles of several blocks; runs shorter than the pipeline.
TEST_F(BatchGemmTest, IsTheProduct) {
  Check({9, 64, 128, 1});
  Check({16, 520, 300, 1});
  Check({12, 520, 300, 4, true, false});
  Check({17, 328, 133, 3, true, true});
  Check({32, 136, 257, 5, false, true, true});
  Check({33, 200, 129, 7, true, true, true});
  Check({64, 1032, 31, 6, true});
  Check({41, 8, 260, 2, false, true});
}

// Whatever the rows, the matrix and the cut.
TEST_F(BatchGemmTest, IsTheProductOfAnyShape) {
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  };
  for (int i = 0; i < 4; ++i) {
    const int in = 8 * draw(1, 80), out = draw(1, 270);
    const int steps = static_cast<int>(BatchTiles(out)) * ((in + kBatchInputs - 1) / kBatchInputs);
    Check({draw(kBatchLeastRows, kBatchRows), in, out, draw(1, steps), draw(0, 1) == 1, draw(0, 1) == 1,
           draw(0, 1) == 1});
  }
}

// Whatever other rows there are, and whichever block is done last.
TEST_F(BatchGemmTest, GivesARowTheSameBits) {
  constexpr int kIn = 456, kOut = 200, kBlocks = 5;
  const AlignedCopy<Bf16> w(Narrow(Random(kOut * kIn))), a(Narrow(Random(kBatchRows * kIn)));
  std::vector<float> all;
  for (const int rows : {kBatchRows, kBatchLeastRows, 16, 17, 33}) {
    std::vector<float> out(rows * kOut, kNan);
    BatchArgs args{};
    args.w = w.data();
    args.a = a.data();
    args.a_stride = args.in = kIn;
    args.out = TensorView::Of(out.data(), rows, kOut);
    ASSERT_NO_FATAL_FAILURE(Run({rows, kIn, kOut, kBlocks}, args, random_()));
    if (all.empty()) all = out;
    EXPECT_EQ(out, std::vector<float>(all.begin(), all.begin() + rows * kOut)) << rows;
  }
}

}  // namespace
}  // namespace aludel::cuda
