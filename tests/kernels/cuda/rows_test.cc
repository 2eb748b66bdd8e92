#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm/tile_gemm.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rope.cuh"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/aligned_copy.h"

namespace aludel::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Kernels that go over rows, their own source run on the host by simt.h, against loops in double.
class RowKernelTest : public ::testing::Test {
 protected:
  RowKernelTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  // [rows, stride], with NaN between rows.
  std::vector<float> Rows(int64_t rows, int64_t cols, int64_t stride) {
    std::normal_distribution<float> normal;
    std::vector<float> values(rows * stride, kNan);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) values[r * stride + c] = normal(random_);
    }
    return values;
  }

  template <bool kVectors>
  void CheckNorm(int64_t rows, int runs, int64_t width, unsigned threads) {
    const int64_t cols = runs * width, stride = cols + 8;
    const AlignedCopy<float> x(Rows(rows, cols, stride)), weight(Rows(1, width, width));
    const AlignedCopy<float> out(std::vector<float>(rows * stride, kNan));
    constexpr float kEps = 0.5f;
    simt::Launch({static_cast<unsigned>(rows * runs)}, {threads}, 32 * sizeof(float), random_(),
                 [&](char* shared) {
                   NormRun<float, float, kVectors>(x.data(), stride, runs, width, weight.data(), kEps,
                                                   out.data(), stride, reinterpret_cast<float*>(shared));
                 });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < stride; ++c) {
        const float found = out.data()[r * stride + c];
        if (c >= cols) {
          ASSERT_TRUE(std::isnan(found)) << "row " << r << ", column " << c;
          continue;
        }
        double sum = 0;
        const float* const run = x.data() + r * stride + c / width * width;
        for (int64_t i = 0; i < width; ++i) sum += double{run[i]} * run[i];
        const double expected =
            x.data()[r * stride + c] / std::sqrt(sum / width + kEps) * weight.data()[c % width];
        ASSERT_NEAR(found, expected, 1e-5 * std::fabs(expected) + 1e-6) << "row " << r << ", column " << c;
      }
    }
  }

  template <typename In, typename Out>
  void CheckTileGemm(int64_t rows, int64_t cols, int64_t depth, bool with_bias, bool accumulate,
                     unsigned tall) {
    const int64_t stride = depth + 3, out_stride = cols + 5;
    const std::vector<float> a = Rows(rows, depth, stride), w = Rows(cols, depth, depth);
    const std::vector<float> bias = Rows(1, cols, cols), before = Rows(rows, cols, out_stride);
    const AlignedCopy<In> a_there(As<In>(a)), w_there(As<In>(w));
    const AlignedCopy<float> bias_there(bias);
    const AlignedCopy<Out> out(As<Out>(before));
    simt::Launch({static_cast<unsigned>((cols + kTile - 1) / kTile), tall}, {kTile, kTile},
                 sizeof(TileShared), random_(), [&](char* shared) {
                   MultiplyTile<In, Out>(a_there.data(), stride, w_there.data(),
                                         with_bias ? bias_there.data() : nullptr, accumulate, out.data(),
                                         out_stride, rows, cols, depth,
                                         reinterpret_cast<TileShared*>(shared));
                 });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < out_stride; ++c) {
        const double found = Load(out.data() + r * out_stride + c);
        if (c >= cols) {
          ASSERT_TRUE(std::isnan(found));
          continue;
        }
        double expected =
            (with_bias ? bias[c] : 0.0) + (accumulate ? Value<Out>(before[r * out_stride + c]) : 0.0);
        for (int64_t d = 0; d < depth; ++d)
          expected += Value<In>(a[r * stride + d]) * Value<In>(w[c * depth + d]);
        const double bound = sizeof(Out) == 2 ? 0x1p-8 * std::fabs(expected) + 1e-5 : 1e-4;
        ASSERT_NEAR(found, expected, bound) << "row " << r << ", column " << c;
      }
    }
  }

  template <typename T>
  static double Value(float value) {
    return Rounded<T>(value);
  }
  template <typename T>
  static std::vector<T> As(const std::vector<float>& values) {
    std::vector<T> narrow(values.size());
    for (size_t i = 0; i < values.size(); ++i) Store(&narrow[i], values[i]);
    return narrow;
  }

  std::mt19937_64 random_;
};

TEST_F(RowKernelTest, NormsRunsOfARow) {
  ASSERT_NO_FATAL_FAILURE(CheckNorm<false>(2, 1, 301, 256));
  ASSERT_NO_FATAL_FAILURE(CheckNorm<false>(3, 3, 37, 64));
  ASSERT_NO_FATAL_FAILURE(CheckNorm<false>(2, 2, 5, 32));
  ASSERT_NO_FATAL_FAILURE(CheckNorm<true>(2, 1, 2056, 256));
  ASSERT_NO_FATAL_FAILURE(CheckNorm<true>(2, 2, 128, 32));
}

TEST_F(RowKernelTest, MultipliesTilesOfAnyEdge) {
  ASSERT_NO_FATAL_FAILURE((CheckTileGemm<float, float>(16, 16, 16, false, false, 1)));
  ASSERT_NO_FATAL_FAILURE((CheckTileGemm<float, float>(1, 37, 50, true, false, 1)));
  ASSERT_NO_FATAL_FAILURE((CheckTileGemm<Bf16, Bf16>(33, 20, 41, true, true, 2)));
  ASSERT_NO_FATAL_FAILURE((CheckTileGemm<Bf16, float>(5, 1, 7, false, true, 1)));
}

// Sequences of several tokens far into a text, pages in any order.
class RopeKernelTest : public RowKernelTest {
 protected:
  static constexpr int kHeads = 3, kBlockTokens = 4, kThreads = 128;
  static constexpr float kFactor = 1.25f;

  RopeKernelTest() {
    for (const SequenceEntry& entry : entries_) first_token_.push_back(entry.row_begin);
  }

  std::vector<float> Frequencies(int half) {
    std::vector<float> frequencies(half);
    for (int i = 0; i < half; ++i) frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / half);
    return frequencies;
  }
  SequenceTable Table() const { return {first_token_.data(), entries_.data(), blocks_.data(), 2, kTokens}; }
  template <typename T, bool kVectors>
  void CheckTurned(int half, double tolerance);
  // Keys are wanted within these of what they are.
  template <typename In, typename Page, bool kVectors>
  void CheckPages(DType type, double relative, double absolute);

  // x_i and x_{i + half} of a head, rotated.
  static std::pair<double, double> Rotated(double a, double b, double position, double frequency) {
    const double c = std::cos(position * frequency) * kFactor, s = std::sin(position * frequency) * kFactor;
    return {a * c - b * s, b * c + a * s};
  }

  static constexpr int64_t kTokens = 7;
  const std::vector<SequenceEntry> entries_ = {{0, 3, 9, 0}, {3, 4, 100, 3}};
  // Three blocks of the first sequence, and 26 of the second.
  const std::vector<int32_t> blocks_ = {2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3};
  std::vector<int64_t> first_token_;
};

template <typename T, bool kVectors>
void RopeKernelTest::CheckTurned(int half, double tolerance) {
  const int64_t cols = kHeads * 2 * half, stride = cols + (kVectors ? 8 : 3);
  const std::vector<float> rows = Rows(kTokens, cols, stride), frequencies = Frequencies(half);
  const AlignedCopy<T> q(As<T>(rows));
  simt::Launch({kTokens}, {kThreads}, 2 * half * sizeof(float), random_(), [&](char* shared) {
    RotateToken<T, kVectors>(q.data(), stride, kHeads, half, frequencies.data(), kFactor, Table(),
                             reinterpret_cast<float*>(shared));
  });
  for (int64_t t = 0; t < kTokens; ++t) {
    const SequenceEntry& entry = entries_[t < 3 ? 0 : 1];
    const double position = static_cast<double>(entry.position_begin + t - entry.row_begin);
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < half; ++i) {
        const int64_t at = t * stride + head * 2 * half + i;
        const auto [a, b] = Rotated(Value<T>(rows[at]), Value<T>(rows[at + half]), position, frequencies[i]);
        ASSERT_NEAR(Load(q.data() + at), a, tolerance * (1e-3 + std::fabs(a)));
        ASSERT_NEAR(Load(q.data() + at + half), b, tolerance * (1e-3 + std::fabs(b)));
      }
    }
  }
}

TEST_F(RopeKernelTest, RotatesEveryHead) {
  ASSERT_NO_FATAL_FAILURE((CheckTurned<float, false>(64, 1e-3)));
  ASSERT_NO_FATAL_FAILURE((CheckTurned<float, false>(20, 1e-3)));
  ASSERT_NO_FATAL_FAILURE((CheckTurned<float, true>(64, 1e-3)));
  ASSERT_NO_FATAL_FAILURE((CheckTurned<Bf16, false>(20, 0x1p-7)));
  ASSERT_NO_FATAL_FAILURE((CheckTurned<Bf16, true>(24, 0x1p-7)));
  ASSERT_NO_FATAL_FAILURE((CheckTurned<Bf16, true>(64, 0x1p-7)));
}

TEST_F(RopeKernelTest, WritesKeysAndValuesIntoTheirPages) {
  ASSERT_NO_FATAL_FAILURE((CheckPages<float, Bf16, false>(DType::kBf16, 0x1p-8, 1e-5)));
  ASSERT_NO_FATAL_FAILURE((CheckPages<float, Bf16, true>(DType::kBf16, 0x1p-8, 1e-5)));
  ASSERT_NO_FATAL_FAILURE((CheckPages<Bf16, Bf16, true>(DType::kBf16, 0x1p-8, 1e-5)));
  // Half a step of FP8, and of what it has below 2^-6.
  constexpr double kAbsolute = 0x1p-10 / KeyScale(DType::kFp8);
  ASSERT_NO_FATAL_FAILURE((CheckPages<float, Fp8, false>(DType::kFp8, 0x1p-4, kAbsolute)));
  ASSERT_NO_FATAL_FAILURE((CheckPages<Bf16, Fp8, true>(DType::kFp8, 0x1p-4, kAbsolute)));
}

template <typename In, typename Page, bool kVectors>
void RopeKernelTest::CheckPages(DType type, double relative, double absolute) {
  constexpr int kHalf = 64, kDim = 2 * kHalf, kBlocks = 5;
  // Of each layer K, then V, then what is nobody's.
  constexpr int kLayers = 3;
  const int64_t cols = kHeads * kDim, layer_cols = 2 * cols + (kVectors ? 8 : 5),
                stride = kLayers * layer_cols + (kVectors ? 16 : 3);
  const std::vector<float> rows = Rows(kTokens, kLayers * layer_cols, stride);
  const AlignedCopy<In> there(As<In>(rows));
  const std::vector<float> frequencies = Frequencies(kHalf);
  Page nan;
  Store(&nan, kNan);
  constexpr int64_t kPlane = int64_t{kBlocks} * kHeads * kBlockTokens * kDim;
  const AlignedCopy<Page> pages(std::vector<Page>(kLayers * 2 * kPlane, nan));
  const KvPlanes kv{pages.data(), pages.data() + kPlane, type, kBlockTokens, kHeads, kDim};
  const LayerRun run{kLayers, layer_cols, 2 * kPlane * static_cast<int64_t>(sizeof(Page))};
  simt::Launch({kTokens}, {kThreads}, kDim * sizeof(float), random_(), [&](char* shared) {
    RotateAndWriteToken<In, In, Page, kVectors>(there.data(), stride, there.data() + cols, stride,
                                                frequencies.data(), kFactor, Table(), kv, run,
                                                reinterpret_cast<float*>(shared));
  });
  int64_t written = 0;
  for (int64_t i = 0; i < kLayers * 2 * kPlane; ++i) written += pages.data()[i].bits != nan.bits;
  EXPECT_EQ(written, kLayers * 2 * kTokens * cols);
  for (int64_t u = 0; u < kLayers * kTokens; ++u) {
    const int64_t layer = u / kTokens, t = u % kTokens;
    const float* const k = rows.data() + layer * layer_cols;
    const float* const v = k + cols;
    const Page* const keys = pages.data() + layer * 2 * kPlane;
    const Page* const values = keys + kPlane;
    const SequenceEntry& entry = entries_[t < 3 ? 0 : 1];
    const int64_t position = entry.position_begin + t - entry.row_begin;
    const int32_t block = blocks_[entry.block_begin + position / kBlockTokens];
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t at = PageOffset(block, kHeads, static_cast<int>(c / kDim), kBlockTokens,
                                    static_cast<int>(position % kBlockTokens), kDim) +
                         c % kDim;
      const float value = v[t * stride + c];
      Page rounded;
      Store(&rounded, RoundToBf16(value));
      ASSERT_EQ(values[at].bits, rounded.bits);
      const bool low = c % kDim < kHalf;
      const float other = k[t * stride + (low ? c + kHalf : c - kHalf)];
      const double own = Rounded<Bf16>(k[t * stride + c]), across = Rounded<Bf16>(other);
      const auto [a, b] = Rotated(low ? own : across, low ? across : own, static_cast<double>(position),
                                  frequencies[c % kHalf]);
      const double expected = low ? a : b;
      ASSERT_NEAR(Load(keys + at) / KeyScale(type), expected, relative * std::fabs(expected) + absolute);
    }
  }
}

TEST_F(RowKernelTest, CopiesRowsInAnyOrder) {
  const int64_t cols = 24, stride = 32;
  const AlignedCopy<float> from(Rows(5, cols, stride));
  for (const bool some : {false, true}) {
    const std::vector<int32_t> rows = {4, 0, 4};
    const AlignedCopy<Bf16> out(std::vector<Bf16>(3 * stride));
    simt::LaunchAlone({3}, {32}, [&](char*) {
      CopyRow<float, Bf16, int32_t, true>(from.data(), stride, some ? rows.data() : nullptr, out.data(),
                                          stride, cols);
    });
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const float expected = from.data()[(some ? rows[r] : r) * stride + c];
        ASSERT_EQ(out.data()[r * stride + c].bits, ToBf16(expected).bits);
      }
    }
  }
  // What is not a number stays so, in all its bits.
  const std::vector<float> odd = {std::bit_cast<float>(0x7fffffffu), std::bit_cast<float>(0xff800001u),
                                  kInfinity, -kInfinity, -0.0f};
  std::vector<Bf16> narrow(odd.size());
  simt::LaunchAlone({1}, {32}, [&](char*) {
    CopyRow<float, Bf16, int64_t, false>(odd.data(), 5, static_cast<const int64_t*>(nullptr), narrow.data(),
                                         5, 5);
  });
  for (size_t i = 0; i < odd.size(); ++i) ASSERT_EQ(narrow[i].bits, ToBf16(odd[i]).bits) << i;
}

TEST_F(RowKernelTest, SiluIsExactAtBothEnds) {
  const auto silu = [](double x) { return x / (1.0 + std::exp(-x)); };
  const std::vector<float> gates = {0.0f,   1.0f,  -1.0f,  20.0f,     -20.0f, 88.0f,
                                    -88.0f, 3e38f, -3e38f, kInfinity, 0.3f,   2.0f};
  const auto count = static_cast<int64_t>(gates.size());
  std::vector<float> both = gates;
  for (int64_t i = 0; i < count; ++i) both.push_back(1.5f);
  for (const bool gated : {false, true}) {
    // Nothing lies behind what is not gated.
    const AlignedCopy<float> in(gated ? both : gates);
    std::vector<float> out(count, kNan);
    simt::LaunchAlone({1}, {32}, [&](char*) {
      SiluRow<float, float, false>(in.data(), 2 * count, out.data(), count, count, gated);
    });
    for (int64_t i = 0; i < count; ++i) {
      const double expected = silu(gates[i]) * (gated ? 1.5 : 1.0);
      if (std::isinf(expected) || std::fabs(expected) > 3.4e38) {
        ASSERT_EQ(out[i], std::copysign(kInfinity, expected));
      } else {
        ASSERT_NEAR(out[i], expected, 1e-6 * std::fabs(expected) + 1e-30) << gates[i];
      }
    }
  }
  const int64_t cols = 16;
  const AlignedCopy<float> in(Rows(2, 2 * cols, 2 * cols)), alone(Rows(2, cols, cols));
  for (const bool gated : {false, true}) {
    const AlignedCopy<float> out(std::vector<float>(2 * cols, kNan));
    const float* const from = gated ? in.data() : alone.data();
    const int64_t stride = gated ? 2 * cols : cols;
    simt::LaunchAlone(
        {2}, {32}, [&](char*) { SiluRow<float, float, true>(from, stride, out.data(), cols, cols, gated); });
    for (int64_t i = 0; i < 2 * cols; ++i) {
      const float* const row = from + i / cols * stride;
      const double expected = silu(row[i % cols]) * (gated ? row[cols + i % cols] : 1.0f);
      ASSERT_NEAR(out.data()[i], expected, 1e-6);
    }
  }
}

TEST_F(RowKernelTest, AddsABiasToSums) {
  for (const bool vectors : {false, true}) {
    const int64_t cols = 40, stride = 48;
    const AlignedCopy<float> sums(Rows(3, cols, stride)), bias(Rows(1, cols, cols));
    const AlignedCopy<Bf16> out(std::vector<Bf16>(3 * stride));
    simt::LaunchAlone({3}, {32}, [&](char*) {
      vectors ? AddBiasToRow<true>(sums.data(), stride, bias.data(), out.data(), stride, cols)
              : AddBiasToRow<false>(sums.data(), stride, bias.data(), out.data(), stride, cols);
    });
    for (int64_t i = 0; i < 3 * cols; ++i) {
      const int64_t at = i / cols * stride + i % cols;
      ASSERT_EQ(out.data()[at].bits, ToBf16(sums.data()[at] + bias.data()[i % cols]).bits);
    }
  }
}

}  // namespace
}  // namespace aludel::cuda
