#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/gemm/fused_gemm.cuh"

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
constexpr float kEps = 0.25f;
constexpr int kEach = std::numeric_limits<int>::max();

// The kernels' own source, run on the host by simt.h and held against loops in double.
class FusedGemmTest : public ::testing::Test {
 protected:
  FusedGemmTest() {
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
  std::vector<Bf16> RandomWeights(size_t count) {
    const std::vector<float> values = Random(count);
    std::vector<Bf16> narrow(count);
    std::transform(values.begin(), values.end(), narrow.begin(), ToBf16);
    return narrow;
  }

  // The normed rows, rounded; x has `stride`.
  static std::vector<double> Normed(const float* x, int64_t stride, int rows, int in, const float* weight) {
    std::vector<double> normed(rows * in);
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int k = 0; k < in; ++k) sum += double{x[r * stride + k]} * x[r * stride + k];
      for (int k = 0; k < in; ++k) {
        normed[r * in + k] =
            RoundToBf16(static_cast<float>(x[r * stride + k] / std::sqrt(sum / in + kEps) * weight[k]));
      }
    }
    return normed;
  }

  struct Output {
    double sum;
    double bound;
  };
  static Output Product(const double* a, const Bf16* w, int in, double bias) {
    Output out{bias, 1.0};
    for (int k = 0; k < in; ++k) {
      out.sum += a[k] * ToFloat(w[k]);
      out.bound += std::fabs(a[k] * ToFloat(w[k]));
    }
    // A row that is rounded the other way, here and there.
    out.bound *= 0x1p-10;
    return out;
  }

  template <typename Page>
  void CheckQkv(int rows, int in, int heads, int kv_heads, int head_dim, bool with_bias, int blocks = kEach);
  void CheckGateUp(int rows, int in, int cols, bool with_bias, int blocks = kEach);

  // A block for each of the tiles, or `blocks` where they are fewer.
  template <typename Run>
  void Launch(int tiles, int blocks, int rows, int in, const Run& run) {
    simt::Launch({static_cast<unsigned>(std::min(tiles, blocks))}, {kSkinnyThreads},
                 kSkinnySharedBytes + FusedSharedBytes(rows, in), random_(), [&](char* shared) {
                   run(reinterpret_cast<Bf16*>(shared + kSkinnySharedBytes),
                       reinterpret_cast<float*>(shared));
                 });
  }

  std::mt19937_64 random_;
};

template <typename Page>
void FusedGemmTest::CheckQkv(int rows, int in, int heads, int kv_heads, int head_dim, bool with_bias,
                             int blocks_at_once) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << in << ", " << heads << "/" << kv_heads
                                  << " heads of " << head_dim);
  constexpr int kBlockTokens = 4;
  constexpr DType kType = sizeof(Page) == 4 ? DType::kF32 : sizeof(Page) == 2 ? DType::kBf16 : DType::kFp8;
  const int half = head_dim / 2, q_dim = heads * head_dim, kv_dim = kv_heads * head_dim;
  const int64_t stride = in + 8, q_stride = q_dim + 3;
  const AlignedCopy<float> x(Random(rows * stride)), weight(Random(in)), bias(Random(q_dim + 2 * kv_dim));
  const AlignedCopy<Bf16> q_w(RandomWeights(q_dim * in)), kv_w(RandomWeights(2 * kv_dim * in));
  const AlignedCopy<float> angles(Random(rows * head_dim));
  const AlignedCopy<float> q(std::vector<float>(rows * q_stride, kNan));
  // A sequence of all rows but the last, at position 2, and one of that row, at 9.
  std::vector<int64_t> first_token = {0};
  std::vector<SequenceEntry> entries;
  const std::vector<int32_t> blocks = {4, 1, 0, 5, 2, 3, 6};
  if (rows > 1) {
    entries.push_back({0, rows - 1, 2, 0});
    first_token.push_back(rows - 1);
  }
  entries.push_back({rows - 1, 1, 9, 3});
  const SequenceTable table{first_token.data(), entries.data(), blocks.data(),
                            static_cast<int>(entries.size()), rows};
  Page nan;
  Store(&nan, kNan);
  const size_t plane = size_t{7} * kv_heads * kBlockTokens * head_dim;
  const AlignedCopy<Page> k(std::vector<Page>(plane, nan)), v(std::vector<Page>(plane, nan));
  const QkvArgs args{{x.data(), stride, rows, in, weight.data(), kEps},
                     q_w.data(),
                     kv_w.data(),
                     with_bias ? bias.data() : nullptr,
                     angles.data(),
                     q.data(),
                     q_stride,
                     heads,
                     table,
                     {k.data(), v.data(), kType, kBlockTokens, kv_heads, head_dim}};
  Launch(QkvTiles(args), blocks_at_once, rows, in,
         [&](Bf16* a, float* sums) { QkvBlock<Page>(args, a, sums); });

  const std::vector<double> a = Normed(x.data(), stride, rows, in, weight.data());
  // Twice what the pages' numbers are off by, for K is rounded before it is rotated, too; and FP8 is off by 2^-10 at the
  // least, where it is subnormal.
  constexpr bool kOverFp8 = kType == DType::kFp8;
  const double rounding = kOverFp8 ? 0x1p-3 : sizeof(Page) == 2 ? 0x1p-7 : 0.0;
  const double smallest = kOverFp8 ? 0x1p-10 : 0.0;
  const double keys = KeyScale(kType);
  for (int r = 0; r < rows; ++r) {
    const auto output = [&](const Bf16* w, int64_t row, int64_t at) {
      return Product(&a[r * in], w + row * in, in, with_bias ? bias.data()[at] : 0.0);
    };
    const auto angle = [&](int i) {
      return std::pair<double, double>(angles.data()[r * head_dim + i],
                                       angles.data()[r * head_dim + half + i]);
    };
    const auto expect_rotated = [&](const Output& low, const Output& high, int i, double one, double other,
                                    double relative) {
      const auto [cosine, sine] = angle(i);
      const double bound =
          (low.bound + high.bound) * (std::fabs(cosine) + std::fabs(sine)) +
          relative * (std::fabs(low.sum) + std::fabs(high.sum)) * (std::fabs(cosine) + std::fabs(sine));
      ASSERT_NEAR(one, low.sum * cosine - high.sum * sine, bound + smallest / keys)
          << "row " << r << ", pair " << i;
      ASSERT_NEAR(other, high.sum * cosine + low.sum * sine, bound + smallest / keys)
          << "row " << r << ", pair " << i;
    };
    for (int h = 0; h < heads; ++h) {
      for (int i = 0; i < half; ++i) {
        const int64_t at = h * head_dim + i;
        ASSERT_NO_FATAL_FAILURE(
            expect_rotated(output(q_w.data(), at, at), output(q_w.data(), at + half, at + half), i,
                           q.data()[r * q_stride + at], q.data()[r * q_stride + at + half], 0.0));
      }
    }
    for (int64_t c = q_dim; c < q_stride; ++c) ASSERT_TRUE(std::isnan(q.data()[r * q_stride + c]));
    const bool last = r == rows - 1;
    const int64_t position = last ? 9 : 2 + r;
    const int32_t block = blocks[(last ? 3 : 0) + position / kBlockTokens];
    for (int h = 0; h < kv_heads; ++h) {
      const int64_t page = PageOffset(block, kv_heads, h, kBlockTokens, position % kBlockTokens, head_dim);
      for (int i = 0; i < half; ++i) {
        const int64_t at = h * head_dim + i;
        ASSERT_NO_FATAL_FAILURE(expect_rotated(
            output(kv_w.data(), at, q_dim + at), output(kv_w.data(), at + half, q_dim + at + half), i,
            Load(k.data() + page + i) / keys, Load(k.data() + page + i + half) / keys, rounding));
        for (const int d : {i, i + half}) {
          const int64_t row = kv_dim + h * head_dim + d;
          const Output value = output(kv_w.data(), row, q_dim + row);
          ASSERT_NEAR(Load(v.data() + page + d), value.sum,
                      (1 + rounding) * value.bound + rounding * std::fabs(value.sum) + smallest);
        }
      }
    }
  }
  int64_t written = 0;
  for (size_t i = 0; i < plane; ++i)
    written += !std::isnan(Load(k.data() + i)) + !std::isnan(Load(v.data() + i));
  EXPECT_EQ(written, int64_t{2} * rows * kv_dim);
}

void FusedGemmTest::CheckGateUp(int rows, int in, int cols, bool with_bias, int blocks) {
  SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << cols);
  const int64_t stride = in + 8, out_stride = cols + 5;
  const AlignedCopy<float> x(Random(rows * stride)), weight(Random(in)), bias(Random(2 * cols));
  const AlignedCopy<Bf16> w(RandomWeights(size_t{2} * cols * in));
  const AlignedCopy<Bf16> out(std::vector<Bf16>(rows * out_stride, Bf16{0x7fff}));
  const GateArgs args{{x.data(), stride, rows, in, weight.data(), kEps},
                      w.data(),
                      with_bias ? bias.data() : nullptr,
                      out.data(),
                      out_stride,
                      cols};
  Launch(GateTiles(args), blocks, rows, in, [&](Bf16* a, float* sums) { GateUpBlock(args, a, sums); });
  const std::vector<double> a = Normed(x.data(), stride, rows, in, weight.data());
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      const Output gate = Product(&a[r * in], w.data() + c * in, in, with_bias ? bias.data()[c] : 0.0);
      const Output up =
          Product(&a[r * in], w.data() + (cols + c) * in, in, with_bias ? bias.data()[cols + c] : 0.0);
      const double silu = gate.sum / (1.0 + std::exp(-gate.sum));
      const double bound =
          (1.1 * gate.bound + 0x1p-8 * std::fabs(gate.sum)) * (std::fabs(up.sum) + up.bound) +
          std::fabs(silu) * up.bound + 0x1p-7 * std::fabs(silu * up.sum);
      ASSERT_NEAR(ToFloat(out.data()[r * out_stride + c]), silu * up.sum, bound)
          << "row " << r << ", column " << c;
    }
    for (int64_t c = cols; c < out_stride; ++c) ASSERT_EQ(out.data()[r * out_stride + c].bits, 0x7fff);
  }
}

TEST_F(FusedGemmTest, QkvIsNormedRotatedAndInItsPages) {
  CheckQkv<Bf16>(1, 256, 4, 2, 32, false);
  CheckQkv<Bf16>(3, 72, 2, 1, 128, true);
  CheckQkv<float>(8, 64, 3, 1, 16, true);
  CheckQkv<Fp8>(3, 72, 2, 1, 128, true);
  CheckQkv<Fp8>(2, 256, 4, 2, 32, false);
  CheckQkv<Bf16>(4, 1100 / 8 * 8, 1, 1, 64, false);
  for (const int blocks : {1, 3}) CheckQkv<Bf16>(2, 264, 3, 2, 64, true, blocks);
}

TEST_F(FusedGemmTest, GateAndUpMeetInOneBlock) {
  CheckGateUp(1, 256, 40, false);
  CheckGateUp(5, 72, 8, true);
  CheckGateUp(8, 64, 16, true);
  CheckGateUp(2, 2056, 16, false);
  for (const int blocks : {1, 2}) CheckGateUp(3, 136, 40, true, blocks);
}

TEST_F(FusedGemmTest, AnglesAreThoseOfEachPosition) {
  constexpr int kHalf = 40;
  std::vector<float> frequencies(kHalf);
  for (int i = 0; i < kHalf; ++i) frequencies[i] = std::pow(10000.0f, -static_cast<float>(i) / kHalf);
  const std::vector<int64_t> first_token = {0, 2};
  const std::vector<SequenceEntry> entries = {{0, 2, 7, 0}, {2, 1, 100000, 0}};
  const SequenceTable table{first_token.data(), entries.data(), nullptr, 2, 3};
  std::vector<float> angles(3 * 2 * kHalf, kNan);
  simt::LaunchAlone({3}, {32},
                    [&](char*) { AnglesOfToken(frequencies.data(), 1.5f, kHalf, table, angles.data()); });
  const double positions[] = {7, 8, 100000};
  for (int t = 0; t < 3; ++t) {
    for (int i = 0; i < kHalf; ++i) {
      const double angle = positions[t] * static_cast<double>(frequencies[i]);
      ASSERT_NEAR(angles[t * 2 * kHalf + i], 1.5 * std::cos(angle), 1e-6);
      ASSERT_NEAR(angles[(t * 2 + 1) * kHalf + i], 1.5 * std::sin(angle), 1e-6);
    }
  }
}

}  // namespace
}  // namespace aludel::cuda
