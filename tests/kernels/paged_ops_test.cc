#include "kernels/ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/fp8_pages.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/ops_fixture.h"

namespace aludel {
namespace {

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

class AttentionOpsTest : public OpsTest {
 protected:
  void CheckAttention(const AttentionCase& c);
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
  const auto wide_k = OnDevice(Poisoned(plane)), wide_v = OnDevice(Poisoned(plane));
  const auto narrow_k = OnDevice(Narrow(Poisoned(plane))), narrow_v = OnDevice(Narrow(Poisoned(plane)));
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
    const auto q = Random(rows * q_dim), k = Random(rows * kv_dim), v = Random(rows * kv_dim);
    const auto q_there = OnDevice(q), k_there = OnDevice(k), v_there = OnDevice(v);
    SequenceRows sequences[2];
    int64_t row = 0;
    for (int s = 0; s < 2; ++s) {
      sequences[s] = {row, chunk[s], static_cast<int64_t>(keys[s].size()), pages[s]};
      for (int64_t r = 0; r < chunk[s]; ++r, ++row) {
        keys[s].emplace_back(k.begin() + row * kv_dim, k.begin() + (row + 1) * kv_dim);
        values[s].emplace_back(v.begin() + row * kv_dim, v.begin() + (row + 1) * kv_dim);
      }
    }
    const auto out_there = OnDevice(Poisoned(rows * q_dim));
    const TensorView q_view = q_there.View(rows, q_dim);
    ops_->RopeWriteKv(k_there.View(rows, kv_dim), v_there.View(rows, kv_dim), rope, sequences, kv, {});
    ops_->Rope(q_view, c.head_dim, rope, sequences, {});
    ops_->Attention(q_view, params, sequences, kv, out_there.View(rows, q_dim), {});
    const std::vector<float> out = out_there.Read().value();
    for (const SequenceRows& sequence : sequences) {
      const int s = sequence.blocks.data() == pages[0].data() ? 0 : 1;
      for (int64_t r = 0; r < sequence.rows; ++r) {
        std::vector<double> expected;
        const int64_t at = sequence.row_begin + r;
        Reference(c, keys[s], values[s], q.data() + at * q_dim, sequence.position_begin + r,
                  inverse_frequency, &expected);
        const std::vector<float> found(out.begin() + at * q_dim, out.begin() + (at + 1) * q_dim);
        // Over a bf16 cache queries and probabilities may be rounded to bf16 (2^-9 each at most), and a
        // rotated key may fall on the other side of a rounding step than in double.
        ExpectNear(found, expected, bf16 ? 1.5e-2 : 2e-5);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Turned by every angle that a long context reaches, (1, 0) becomes (cos, sin).
TEST_P(OpsTest, RopeTurnsByTheAngleItself) {
  const std::vector<float> inverse_frequency = {1.0f, 0.7316f, 0.0127f, 3.1e-5f, 8.8e-8f};
  const int half = static_cast<int>(inverse_frequency.size());
  const RopeTable rope{inverse_frequency, 1.25f};
  std::vector<int64_t> positions = {0, 1, 2, 3, 4, 5, 6, 7, 1000, 131071, 1 << 20, (int64_t{1} << 31) - 1};
  for (int i = 0; i < 200; ++i) positions.push_back(random_() % (1 << 22));
  const auto rows = static_cast<int64_t>(positions.size());
  std::vector<float> x(rows * 2 * half, 0.0f);
  std::vector<SequenceRows> sequences;
  for (int64_t r = 0; r < rows; ++r) {
    std::fill_n(x.begin() + r * 2 * half, half, 1.0f);
    sequences.push_back({r, 1, positions[r], {}});
  }
  const auto there = OnDevice(x);
  ops_->Rope(there.View(rows, 2 * half), 2 * half, rope, sequences, {});
  const std::vector<float> found = there.Read().value();
  for (int64_t r = 0; r < rows; ++r) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(positions[r]) * double{inverse_frequency[i]};
      // A float's rounding, twice; and at 2^31 what a double keeps of the angle.
      EXPECT_NEAR(found[r * 2 * half + i], 1.25 * std::cos(angle), 5e-7) << positions[r];
      EXPECT_NEAR(found[r * 2 * half + half + i], 1.25 * std::sin(angle), 5e-7) << positions[r];
    }
  }
}

// Of a step whose last rows only read, the first sequences are asked for alone, and then all of them.
TEST_P(OpsTest, RopeOfTheFirstSequencesIsWhatItIsAmongAll) {
  constexpr int64_t kCols = 8;
  const std::vector<float> inverse_frequency = {1.0f, 0.31f, 0.1f, 0.031f};
  const RopeTable rope{inverse_frequency};
  const std::vector<SequenceRows> sequences = {{0, 3, 17, {}}, {3, 1, 400, {}}, {4, 2, 5, {}}};
  const std::vector<float> x = Random(6 * kCols);
  const auto turned = [&](absl::Span<const SequenceRows> rows) {
    const auto there = OnDevice(x);
    ops_->Rope(there.View(6, kCols), kCols, rope, rows, {});
    return there.Read().value();
  };
  const auto head = [](const std::vector<float>& values, int64_t rows) {
    return std::vector<float>(values.begin(), values.begin() + rows * kCols);
  };
  const absl::Span<const SequenceRows> all = sequences;
  const std::vector<float> first = turned(all.first(2)), whole = turned(all);
  EXPECT_EQ(turned(all.first(2)), first);
  EXPECT_EQ(head(first, 4), head(whole, 4));
  EXPECT_NE(first, whole);  // of which the last rows are turned, too
  EXPECT_EQ(turned(all), whole);
  // Its first rows are the last of all, of other positions.
  const auto tail = [](const std::vector<float>& values) {
    return std::vector<float>(values.begin() + 3 * kCols, values.end());
  };
  EXPECT_EQ(tail(turned(all.last(2))), tail(whole));
  EXPECT_EQ(head(turned(all.first(1)), 3), head(whole, 3));
}

// What a handoff brings as bf16 and what a model computes in f32 become the same pages, whatever these
// are of.
TEST_P(OpsTest, PagesAreTheSameFromBf16AndFromF32) {
  constexpr int kKvHeads = 3, kHeadDim = 32, kBlockTokens = 8, kRows = 37, kBlocks = 9;
  constexpr int64_t kKvDim = kKvHeads * kHeadDim, kPlane = int64_t{kBlocks} * kBlockTokens * kKvDim;
  std::vector<float> inverse_frequency;
  for (int i = 0; i < kHeadDim / 2; ++i)
    inverse_frequency.push_back(static_cast<float>(std::pow(5e5, -2.0 * i / kHeadDim)));
  const RopeTable rope{inverse_frequency};
  const std::vector<Bf16> k = Narrow(Random(kRows * kKvDim)), v = Narrow(Random(kRows * kKvDim));
  const auto widened = [](const std::vector<Bf16>& narrow) {
    std::vector<float> wide;
    for (const Bf16 value : narrow) wide.push_back(ToFloat(value));
    return wide;
  };
  const std::vector<int32_t> blocks = {7, 0, 3, 8, 1, 5};
  const std::vector<SequenceRows> sequences = {{0, kRows, 5, blocks}};
  const auto pages = [&](const TensorView& k_there, const TensorView& v_there, auto empty) {
    const auto k_pages = OnDevice(empty), v_pages = OnDevice(empty);
    const DType type = sizeof(empty[0]) == 4   ? DType::kF32
                       : sizeof(empty[0]) == 2 ? DType::kBf16
                                               : DType::kFp8;
    const PagedKv kv{k_pages.data(), v_pages.data(), type, kBlockTokens, kKvHeads, kHeadDim};
    ops_->RopeWriteKv(k_there, v_there, rope, sequences, kv, {});
    return std::make_pair(k_pages.Read().value(), v_pages.Read().value());
  };
  const auto same = [](const auto& one, const auto& other) {
    return std::memcmp(one.data(), other.data(), one.size() * sizeof(one[0])) == 0;
  };
  const auto k_narrow = OnDevice(k), v_narrow = OnDevice(v);
  const auto k_wide = OnDevice(widened(k)), v_wide = OnDevice(widened(v));
  const auto check = [&](auto empty) {
    const auto from_narrow = pages(k_narrow.View(kRows, kKvDim), v_narrow.View(kRows, kKvDim), empty);
    const auto from_wide = pages(k_wide.View(kRows, kKvDim), v_wide.View(kRows, kKvDim), empty);
    EXPECT_TRUE(same(from_narrow.first, from_wide.first));
    EXPECT_TRUE(same(from_narrow.second, from_wide.second));
    EXPECT_FALSE(same(from_narrow.first, empty));
    EXPECT_FALSE(same(from_narrow.second, empty));
  };
  check(Poisoned(kPlane));
  check(Narrow(Poisoned(kPlane)));
  check(std::vector<Fp8>(kPlane, Fp8{kE4m3Nan}));
}

// Rows of several layers become what each layer's become alone, in pages as close as a pool has them and further apart.
TEST_P(OpsTest, LayersTogetherGiveThePagesOfEachAlone) {
  constexpr int kKvHeads = 2, kHeadDim = 32, kBlockTokens = 8, kBlocks = 9, kLayers = 3;
  constexpr int64_t kRows = 29, kKvDim = kKvHeads * kHeadDim,
                    kPlane = int64_t{kBlocks} * kBlockTokens * kKvDim;
  std::vector<float> inverse_frequency;
  for (int i = 0; i < kHeadDim / 2; ++i)
    inverse_frequency.push_back(static_cast<float>(std::pow(1e4, -2.0 * i / kHeadDim)));
  const RopeTable rope{inverse_frequency};
  const std::vector<int32_t> blocks = {7, 0, 3, 8, 1};
  const std::vector<SequenceRows> sequences = {{4, 12, 5, blocks}, {16, 13, 20, blocks}};
  // In rows that are wider still, and hold nothing else's.
  constexpr int64_t kCols = kLayers * 2 * kKvDim, kStride = kCols + 16;
  const std::vector<float> host = Random(kRows * kStride);
  const auto wide = OnDevice(host);
  const auto narrow = OnDevice(Narrow(host));
  const auto check = [&](const TensorView& all, auto empty) {
    const TensorView rows = all.Cols(8, kCols);
    const DType type = sizeof(empty[0]) == 4   ? DType::kF32
                       : sizeof(empty[0]) == 2 ? DType::kBf16
                                               : DType::kFp8;
    const auto together = OnDevice(empty), alone = OnDevice(empty);
    const auto layers = [&](const auto& pages, int step) {
      std::vector<PagedKv> of;
      for (int i = 0; i < kLayers; ++i) {
        auto* const k = pages.data() + int64_t{i} * step * 2 * kPlane;
        of.push_back({k, k + kPlane, type, kBlockTokens, kKvHeads, kHeadDim});
      }
      return of;
    };
    for (const int step : {1, 2}) {
      ops_->RopeWriteLayers(rows, rope, sequences, layers(together, step), {});
      for (int i = 0; i < kLayers; ++i) {
        ops_->RopeWriteKv(rows.Cols(2 * i * kKvDim, kKvDim), rows.Cols((2 * i + 1) * kKvDim, kKvDim), rope,
                          sequences, layers(alone, step)[i], {});
      }
      const auto found = together.Read().value(), want = alone.Read().value();
      EXPECT_EQ(std::memcmp(found.data(), want.data(), found.size() * sizeof(found[0])), 0);
      EXPECT_NE(std::memcmp(found.data(), empty.data(), found.size() * sizeof(found[0])), 0);
    }
  };
  constexpr int64_t kRoom = 2 * kLayers * 2 * kPlane;
  for (const TensorView& all : {wide.View(kRows, kStride), narrow.View(kRows, kStride)}) {
    check(all, Poisoned(kRoom));
    check(all, Narrow(Poisoned(kRoom)));
    check(all, std::vector<Fp8>(kRoom, Fp8{kE4m3Nan}));
  }
}

// Rows of every size that pages of FP8 have numbers for and beyond, against the rounding in double. Rows are f32.
TEST_P(OpsTest, PagesOfFp8HoldTheNearestNumbers) {
  constexpr int kKvHeads = 2, kBlockTokens = 8, kBlocks = 9;
  const std::vector<int32_t> blocks = {7, 0, 3, 8, 1, 5};
  for (const int head_dim : {32, 18, 128}) {
    const int half = head_dim / 2, kv_dim = kKvHeads * head_dim;
    constexpr int64_t kRows = 37, kFirst = 5;
    std::vector<float> inverse_frequency;
    for (int i = 0; i < half; ++i)
      inverse_frequency.push_back(static_cast<float>(std::pow(5e5, -2.0 * i / head_dim)));
    std::vector<float> k = Random(kRows * kv_dim), v = Random(kRows * kv_dim);
    for (std::vector<float>* rows : {&k, &v}) {
      for (float& value : *rows) value *= std::exp2(static_cast<float>(random_() % 24) - 12.0f);
    }
    v[3] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<Fp8> empty(int64_t{kBlocks} * kBlockTokens * kv_dim, Fp8{kE4m3Nan});
    const auto k_pages = OnDevice(empty), v_pages = OnDevice(empty);
    const PagedKv kv{k_pages.data(), v_pages.data(), DType::kFp8, kBlockTokens, kKvHeads, head_dim};
    const std::vector<SequenceRows> sequences = {{0, kRows, kFirst, blocks}};
    const auto k_there = OnDevice(k), v_there = OnDevice(v);
    ops_->RopeWriteKv(k_there.View(kRows, kv_dim), v_there.View(kRows, kv_dim), {inverse_frequency},
                      sequences, kv, {});
    const std::vector<Fp8> keys = k_pages.Read().value(), values = v_pages.Read().value();
    // That `code` is a nearest one to `value`, which is known but for `slack`.
    const auto expect_nearest = [](Fp8 code, double value, double slack) {
      const double found = FromFp8(code);
      const double size = std::min(std::fabs(value), 448.0);
      const double step = std::exp2(std::max(std::floor(std::log2(std::max(size, 0x1p-20))), -6.0) - 3);
      ASSERT_NEAR(found, std::clamp(value, -448.0, 448.0), step / 2 + slack) << value;
    };
    for (int64_t r = 0; r < kRows; ++r) {
      const int64_t position = kFirst + r;
      for (int head = 0; head < kKvHeads; ++head) {
        const int64_t page = ((int64_t{blocks[position / kBlockTokens]} * kKvHeads + head) * kBlockTokens +
                              position % kBlockTokens) *
                             head_dim;
        const float* const k_row = &k[r * kv_dim + head * head_dim];
        for (int d = 0; d < head_dim; ++d) {
          const float value = v[r * kv_dim + head * head_dim + d];
          if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(FromFp8(values[page + d])));
          } else {
            ASSERT_EQ(values[page + d].bits, ToFp8(RoundToBf16(value)).bits) << value;
          }
          const double low = RoundToBf16(k_row[d % half]), high = RoundToBf16(k_row[d % half + half]);
          const double angle = static_cast<double>(position) * inverse_frequency[d % half];
          const double rotated = d < half ? low * std::cos(angle) - high * std::sin(angle)
                                          : high * std::cos(angle) + low * std::sin(angle);
          ASSERT_NO_FATAL_FAILURE(
              expect_nearest(keys[page + d], rotated / 4, 1e-6 * (std::fabs(low) + std::fabs(high))));
        }
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

TEST_P(PagedOpsTest, AttendWithHeadsOfOddSizes) {
  Check({3, 3, 18, 0, DType::kF32});
  Check({3, 3, 18, 0, DType::kBf16});
  Check({26, 2, 80, 33, DType::kBf16});
}

TEST_P(PagedOpsTest, AttendWithinASlidingWindow) {
  Check({4, 2, 32, 1, DType::kF32});
  Check({4, 2, 32, 9, DType::kF32});
  Check({40, 1, 16, 70, DType::kBf16});
}

void AttentionOpsTest::CheckAttention(const AttentionCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  const AttentionProblem problem(c, random_);
  const auto k = OnDevice(problem.k), v = OnDevice(problem.v);
  const auto narrow_k = OnDevice(problem.Fp8Keys()), narrow_v = OnDevice(problem.Fp8Values());
  const auto q = OnDevice(problem.q);
  const auto narrow_q = OnDevice(Narrow(problem.q));
  const size_t out_size = problem.rows * problem.out_stride;
  const auto out = OnDevice(Poisoned(out_size));
  const auto narrow_out = OnDevice(Narrow(Poisoned(out_size)));
  PagedKv kv{k.data(), v.data(), DType::kBf16, c.block_tokens, c.kv_heads, c.head_dim};
  if (c.fp8) kv.k = narrow_k.data(), kv.v = narrow_v.data(), kv.dtype = DType::kFp8;
  const auto columns = [&](const TensorView& view) { return view.Cols(0, problem.q_dim()); };
  const TensorView q_view = columns(c.bf16_rows ? narrow_q.View(problem.rows, problem.q_stride)
                                                : q.View(problem.rows, problem.q_stride));
  const TensorView out_view = columns(c.bf16_rows ? narrow_out.View(problem.rows, problem.out_stride)
                                                  : out.View(problem.rows, problem.out_stride));
  ops_->Attention(q_view, problem.params, problem.sequences, kv, out_view, {});
  std::vector<float> found = out.Read().value();
  if (c.bf16_rows) {
    const std::vector<Bf16> narrow = narrow_out.Read().value();
    std::transform(narrow.begin(), narrow.end(), found.begin(), ToFloat);
  }
  problem.Compare(found, [](const std::string& what) { FAIL() << what; });
}

// Attention alone, over bf16 pages as long as an engine's, in every way that its work is cut on a GPU: rows
// and heads of a tile, several tiles, windows, decode steps, long pasts that are split, and batches of
// all these.
TEST_P(AttentionOpsTest, AttentionIsTheFormulaInEveryShape) {
  const std::vector<AttentionCase> cases = {
      {4, 2, 64, 16, 0, {{70, 0}}},
      {3, 1, 96, 16, 0, {{50, 9}}, true},
      {4, 1, 128, 16, 0, {{40, 100}}},
      {2, 1, 256, 16, 0, {{37, 31}}},
      {2, 2, 40, 8, 0, {{33, 0}, {1, 70}}},
      {7, 1, 64, 16, 0, {{1, 0}, {17, 64}, {2, 129}, {40, 3}}},
      {150, 1, 64, 16, 0, {{2, 5}, {1, 8}}},
      {4, 1, 64, 5, 100, {{40, 170}, {3, 400}}, true},
      {2, 1, 64, 16, 1, {{70, 130}}},
      {4, 1, 128, 16, 0, {{1, 2000}, {1, 0}, {1, 63}, {1, 64}, {1, 1023}}, true},
      {4, 2, 256, 16, 0, {{1, 700}, {2, 500}}},
      {3, 1, 96, 32, 300, {{1, 900}, {5, 700}}},
      {4, 2, 64, 16, 0, {{6, 1500}}},
      {4, 2, 128, 16, 0, {{20, 1000}, {1, 1500}, {130, 0}}, true},
      {34, 2, 64, 16, 0, {{1, 800}}},
      {1, 1, 128, 16, 0, {{129, 0}, {128, 128}, {5, 383}}},
      {8, 2, 128, 16, 200, {{300, 900}}, true},
      {4, 2, 64, 16, 0, {{700, 0}, {64, 1000}}},
  };
  for (const AttentionCase& c : cases) CheckAttention(c);
}

// Heads of 40 and of 18 have no whole pieces of 16 bytes, and a kernel that does not round queries, so that theirs are rounded here.
TEST_P(AttentionOpsTest, AttentionOverPagesOfFp8IsTheFormula) {
  const std::vector<AttentionCase> cases = {
      {4, 2, 64, 16, 0, {{70, 0}}, false, true},
      {3, 1, 96, 16, 0, {{50, 9}}, true, true},
      {4, 1, 128, 16, 0, {{40, 100}, {1, 700}}, false, true},
      {2, 1, 256, 16, 0, {{37, 31}, {2, 500}}, false, true},
      {2, 2, 40, 8, 0, {{33, 0}, {1, 70}}, true, true},
      {3, 3, 18, 16, 0, {{5, 40}}, true, true},
      {7, 1, 64, 16, 0, {{1, 0}, {17, 64}, {2, 129}, {40, 3}}, false, true},
      {4, 1, 64, 5, 100, {{40, 170}, {3, 400}}, true, true},
      {4, 1, 128, 16, 0, {{1, 2000}, {1, 0}, {1, 63}, {1, 64}, {1, 1023}}, true, true},
  };
  for (const AttentionCase& c : cases) CheckAttention(c);
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionOpsTest, ::testing::ValuesIn(kDevices), DeviceLabel);
INSTANTIATE_TEST_SUITE_P(Devices, PagedOpsTest, ::testing::ValuesIn(kDevices), DeviceLabel);

}  // namespace
}  // namespace aludel
