#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace aludel {
namespace {

// Every operation against a double-precision loop written from its formula in ops.h, on fresh random inputs.

class OpsTest : public ::testing::TestWithParam<int> {
 protected:
  OpsTest() : device_(OpenDevice({.threads = GetParam()}).value()), ops_(device_->ops()) {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  std::vector<float> Random(size_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  // Outputs start as NaN, so that what an operation leaves out shows.
  static std::vector<float> Poisoned(size_t count) {
    return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN());
  }

  static void ExpectNear(const std::vector<float>& found, const std::vector<double>& expected,
                         double tolerance) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_LE(std::fabs(found[i] - expected[i]), tolerance * (1.0 + std::fabs(expected[i])))
          << "element " << i;
    }
  }

  static std::vector<Bf16> Narrow(const std::vector<float>& values) {
    std::vector<Bf16> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), [](float value) { return ToBf16(value); });
    return narrow;
  }

  std::unique_ptr<Device> device_;
  Ops& ops_;
  std::mt19937_64 random_;
};

TEST_P(OpsTest, RmsNormIsTheFormula) {
  for (const int cols : {1, 7, 16, 33, 256, 1000}) {
    const int rows = 11;
    auto x = Random(rows * cols, 3.0f);
    auto w = Random(cols);
    auto out = Poisoned(rows * cols);
    ops_.RmsNorm(TensorView::Of(x.data(), rows, cols), w.data(), 1e-5f,
                 TensorView::Of(out.data(), rows, cols), {});
    std::vector<double> expected(rows * cols);
    for (int t = 0; t < rows; ++t) {
      double sum = 0;
      for (int c = 0; c < cols; ++c) sum += double{x[t * cols + c]} * x[t * cols + c];
      for (int c = 0; c < cols; ++c) {
        expected[t * cols + c] = x[t * cols + c] / std::sqrt(sum / cols + 1e-5) * w[c];
      }
    }
    ExpectNear(out, expected, 2e-6);
  }
}

TEST_P(OpsTest, GemmMultipliesAddsBiasAndAccumulates) {
  for (const auto& [rows, in, out_features] :
       {std::tuple{1, 8, 5}, {3, 64, 96}, {17, 100, 33}, {64, 256, 512}}) {
    auto a = Random(rows * in);
    auto w = Random(out_features * in);
    auto bias = Random(out_features);
    auto start = Random(rows * out_features);
    const auto packed = ops_.Pack(TensorView::Of(w.data(), out_features, in), DType::kF32).value();
    for (const bool accumulate : {false, true}) {
      auto out = accumulate ? start : Poisoned(rows * out_features);
      ops_.Gemm(TensorView::Of(a.data(), rows, in), *packed, bias.data(), accumulate,
                TensorView::Of(out.data(), rows, out_features), {});
      std::vector<double> expected(rows * out_features);
      for (int t = 0; t < rows; ++t) {
        for (int o = 0; o < out_features; ++o) {
          double sum = bias[o] + (accumulate ? start[t * out_features + o] : 0.0);
          for (int i = 0; i < in; ++i) sum += double{a[t * in + i]} * w[o * in + i];
          expected[t * out_features + o] = sum;
        }
      }
      ExpectNear(out, expected, 1e-4);
    }
  }
}

TEST_P(OpsTest, GemmInBf16RoundsOnlyItsInputs) {
  if (!device_->has_bf16_gemm()) GTEST_SKIP() << "this CPU has no bf16 matrix arithmetic";
  const int rows = 9, in = 128, out_features = 48;
  auto a = Narrow(Random(rows * in));
  auto w = Narrow(Random(out_features * in));
  const auto packed = ops_.Pack(TensorView::Of(w.data(), out_features, in), DType::kBf16).value();
  auto out = Poisoned(rows * out_features);
  ops_.Gemm(TensorView::Of(a.data(), rows, in), *packed, nullptr, false,
            TensorView::Of(out.data(), rows, out_features), {});
  std::vector<double> expected(rows * out_features, 0.0);
  for (int t = 0; t < rows; ++t) {
    for (int o = 0; o < out_features; ++o) {
      for (int i = 0; i < in; ++i) {
        expected[t * out_features + o] += double{ToFloat(a[t * in + i])} * ToFloat(w[o * in + i]);
      }
    }
  }
  ExpectNear(out, expected, 1e-4);
}

TEST_P(OpsTest, SiluMulGatesAtEverySize) {
  const int rows = 5, cols = 77;
  auto gate_up = Random(rows * 2 * cols, 6.0f);
  gate_up[0] = -200.0f;  // exp would overflow a careless sigmoid
  gate_up[1] = 200.0f;
  auto out = Poisoned(rows * cols);
  ops_.SiluMul(TensorView::Of(gate_up.data(), rows, 2 * cols), TensorView::Of(out.data(), rows, cols), {});
  std::vector<double> expected(rows * cols);
  for (int t = 0; t < rows; ++t) {
    for (int c = 0; c < cols; ++c) {
      const double g = gate_up[t * 2 * cols + c];
      expected[t * cols + c] = g / (1.0 + std::exp(-g)) * gate_up[t * 2 * cols + cols + c];
    }
  }
  ExpectNear(out, expected, 2e-6);
}

TEST_P(OpsTest, EmbedGatherAndConvertCopyRows) {
  const int vocab = 9, cols = 21;
  auto table = Random(vocab * cols);
  const std::vector<int32_t> ids = {8, 0, 3, 3};
  auto out = Poisoned(ids.size() * cols);
  const TensorView rows = TensorView::Of(out.data(), ids.size(), cols);
  ops_.Embed(ids, TensorView::Of(table.data(), vocab, cols), rows, {});
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int c = 0; c < cols; ++c) EXPECT_EQ(out[t * cols + c], table[ids[t] * cols + c]);
  }
  auto picked = Poisoned(2 * cols);
  const std::vector<int64_t> which = {2, 0};
  ops_.GatherRows(rows, which, TensorView::Of(picked.data(), 2, cols), {});
  for (int c = 0; c < cols; ++c) EXPECT_EQ(picked[c], table[3 * cols + c]);
  std::vector<Bf16> narrow(2 * cols);
  ops_.Convert(TensorView::Of(picked.data(), 2, cols), TensorView::Of(narrow.data(), 2, cols), {});
  for (int c = 0; c < 2 * cols; ++c) EXPECT_EQ(ToFloat(narrow[c]), RoundToBf16(picked[c]));
}

// Two sequences of one batch whose pages lie scattered in one pool.
struct PagedCase {
  int heads, kv_heads, head_dim;
  int64_t window;
  DType dtype;
};

class PagedOpsTest : public OpsTest {
 protected:
  static constexpr int kBlockTokens = 4;
  static constexpr int kBlocks = 40;

  void Check(const PagedCase& c);
};

// The rotated keys, values and outputs of one sequence, recomputed in double from rows it was given.
void Reference(const PagedCase& c, const std::vector<std::vector<float>>& keys,
               const std::vector<std::vector<float>>& values, const float* q, int64_t position,
               absl::Span<const float> inverse_frequency, std::vector<double>* out) {
  const int half = c.head_dim / 2;
  const auto rotate = [&](const float* x, int64_t at, bool round) {
    std::vector<double> rotated(c.head_dim);
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(at) * inverse_frequency[i];
      const double a = round ? RoundToBf16(x[i]) : x[i];
      const double b = round ? RoundToBf16(x[i + half]) : x[i + half];
      rotated[i] = a * std::cos(angle) - b * std::sin(angle);
      rotated[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    if (round) {
      for (double& value : rotated) value = RoundToBf16(static_cast<float>(value));
    }
    return rotated;
  };
  const bool round = c.dtype == DType::kBf16;
  out->assign(c.heads * c.head_dim, 0.0);
  for (int head = 0; head < c.heads; ++head) {
    const int kv_head = head / (c.heads / c.kv_heads);
    const std::vector<double> query = rotate(q + head * c.head_dim, position, false);
    const int64_t first = c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
    std::vector<double> weights;
    double maximum = -1e300;
    for (int64_t p = first; p <= position; ++p) {
      const std::vector<double> key = rotate(keys[p].data() + kv_head * c.head_dim, p, round);
      double dot = 0;
      for (int d = 0; d < c.head_dim; ++d) dot += query[d] * key[d];
      weights.push_back(dot / std::sqrt(c.head_dim));
      maximum = std::max(maximum, weights.back());
    }
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - maximum);
    for (int64_t p = first; p <= position; ++p) {
      for (int d = 0; d < c.head_dim; ++d) {
        const float value = values[p][kv_head * c.head_dim + d];
        (*out)[head * c.head_dim + d] += weights[p - first] / total * (round ? RoundToBf16(value) : value);
      }
    }
  }
}

void PagedOpsTest::Check(const PagedCase& c) {
  const int kv_dim = c.kv_heads * c.head_dim;
  const int q_dim = c.heads * c.head_dim;
  std::vector<float> inverse_frequency;
  for (int i = 0; i < c.head_dim / 2; ++i) {
    inverse_frequency.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / c.head_dim)));
  }
  const size_t plane = size_t{kBlocks} * kBlockTokens * kv_dim;
  // Unwritten slots hold NaN: reading past a sequence's end cannot hide.
  std::vector<float> wide_k = Poisoned(plane), wide_v = Poisoned(plane);
  std::vector<Bf16> narrow_k = Narrow(wide_k), narrow_v = Narrow(wide_v);
  const bool bf16 = c.dtype == DType::kBf16;
  const PagedKv kv{bf16 ? static_cast<void*>(narrow_k.data()) : wide_k.data(),
                   bf16 ? static_cast<void*>(narrow_v.data()) : wide_v.data(),
                   c.dtype,
                   kBlockTokens,
                   c.kv_heads,
                   c.head_dim};
  std::vector<int32_t> order(kBlocks);
  for (int i = 0; i < kBlocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random_);
  const absl::Span<const int32_t> pages[2] = {{order.data(), 20}, {order.data() + 20, 20}};

  std::vector<std::vector<float>> keys[2], values[2];
  const RopeTable rope{inverse_frequency};
  const AttentionParams params{c.heads, c.kv_heads, c.head_dim, 1.0f / std::sqrt(float(c.head_dim)),
                               c.window};
  // Chunks of odd sizes, the second sequence one token at a time at the end.
  const int64_t chunks[][2] = {{5, 1}, {30, 70}, {1, 1}, {17, 1}};
  for (const auto& chunk : chunks) {
    const int64_t rows = chunk[0] + chunk[1];
    auto q = Random(rows * q_dim), k = Random(rows * kv_dim), v = Random(rows * kv_dim);
    const std::vector<float> q_before = q;
    SequenceRows sequences[2];
    int64_t row = 0;
    for (int s = 0; s < 2; ++s) {
      sequences[s] = {row, chunk[s], static_cast<int64_t>(keys[s].size()), pages[s]};
      for (int64_t r = 0; r < chunk[s]; ++r, ++row) {
        keys[s].emplace_back(k.begin() + row * kv_dim, k.begin() + (row + 1) * kv_dim);
        values[s].emplace_back(v.begin() + row * kv_dim, v.begin() + (row + 1) * kv_dim);
      }
    }
    auto out = Poisoned(rows * q_dim);
    ops_.RopeWriteKv(TensorView::Of(k.data(), rows, kv_dim), TensorView::Of(v.data(), rows, kv_dim), rope,
                     sequences, kv, {});
    ops_.Rope(TensorView::Of(q.data(), rows, q_dim), c.head_dim, rope, sequences, {});
    ops_.Attention(TensorView::Of(q.data(), rows, q_dim), params, sequences, kv,
                   TensorView::Of(out.data(), rows, q_dim), {});
    for (const SequenceRows& sequence : sequences) {
      const int s = sequence.blocks.data() == pages[0].data() ? 0 : 1;
      for (int64_t r = 0; r < sequence.rows; ++r) {
        std::vector<double> expected;
        const int64_t at = sequence.row_begin + r;
        Reference(c, keys[s], values[s], q_before.data() + at * q_dim, sequence.position_begin + r,
                  inverse_frequency, &expected);
        const std::vector<float> found(out.begin() + at * q_dim, out.begin() + (at + 1) * q_dim);
        // A rotated key may fall on the other side of a bf16 rounding step than in double.
        ExpectNear(found, expected, bf16 ? 4e-3 : 2e-5);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(PagedOpsTest, AttendOverScatteredPagesInF32) {
  Check({8, 4, 32, 0, DType::kF32});
  Check({4, 4, 64, 0, DType::kF32});
  Check({6, 1, 96, 0, DType::kF32});
}

TEST_P(PagedOpsTest, AttendOverScatteredPagesInBf16) {
  Check({8, 2, 128, 0, DType::kBf16});
  Check({2, 1, 256, 0, DType::kBf16});
}

TEST_P(PagedOpsTest, AttendWithinASlidingWindow) {
  Check({4, 2, 32, 1, DType::kF32});
  Check({4, 2, 32, 9, DType::kF32});
  Check({40, 1, 16, 70, DType::kBf16});
}

INSTANTIATE_TEST_SUITE_P(Threads, OpsTest, ::testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Threads, PagedOpsTest, ::testing::Values(1, 2));

TEST(Bf16, RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(RoundToBf16(1.0f), 1.0f);
  EXPECT_EQ(RoundToBf16(1.0f + 0x1p-8f), 1.0f);              // a tie, to even
  EXPECT_EQ(RoundToBf16(1.0f + 0x1.8p-7f), 1.0f + 0x1p-6f);  // a tie, to even, upwards
  EXPECT_TRUE(std::isnan(RoundToBf16(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isinf(RoundToBf16(3.4e38f)));
}

}  // namespace
}  // namespace aludel
