#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/gemm/adapted_gemm.cuh"
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

// The kernels' own source, run on the host by simt.h: held against loops in double, and against the kernels of one operation each.

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kEps = 0.25f;
constexpr int kEach = std::numeric_limits<int>::max();

struct Part {
  int64_t rank, outputs, out_begin;
  float scale;
  std::vector<float> a = {}, b = {};
};

// And the rows that have it.
struct Adapter {
  std::vector<Part> parts;
  std::vector<int32_t> rows;
  std::unique_ptr<AlignedCopy<char>> memory = nullptr;
  LowRankLayout layout = {};
};

struct Sum {
  double value = 0, size = 0;  // and of what magnitudes

  void Add(double product) { value += product, size += std::fabs(product); }
};

class AdaptedGemmTest : public ::testing::Test {
 protected:
  AdaptedGemmTest() {
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    std::cout << "seed " << seed << "\n";
    random_.seed(seed);
  }

  std::vector<float> Random(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }
  std::vector<Bf16> RandomBf16(size_t count) {
    const std::vector<float> values = Random(count);
    std::vector<Bf16> narrow(count);
    std::transform(values.begin(), values.end(), narrow.begin(), ToBf16);
    return narrow;
  }

  // Gives the adapters numbers, packed as CudaOps packs them.
  void Fill(int64_t in, std::vector<Adapter>& adapters) {
    for (Adapter& adapter : adapters) {
      std::vector<LowRankPart> parts;
      for (Part& part : adapter.parts) {
        part.a = Random(part.rank * in), part.b = Random(part.outputs * part.rank);
        for (float& value : part.a) value = RoundToBf16(value);
        for (float& value : part.b) value = RoundToBf16(value);
        parts.push_back({TensorView::Of(part.a.data(), part.rank, in),
                         TensorView::Of(part.b.data(), part.outputs, part.rank), part.scale, part.out_begin});
      }
      adapter.layout = LayOutLowRank(parts, in, DType::kBf16);
      adapter.memory = std::make_unique<AlignedCopy<char>>(PackedLowRankBytes(adapter.layout, parts));
    }
  }

  // As CudaOps passes them; sums and counters are this test's.
  AddedArgs Added(const std::vector<Adapter>& adapters, int rows, int64_t in) {
    AddedArgs args{};
    int count = 0;
    for (int row = 0; row < rows; ++row) {
      for (const Adapter& adapter : adapters) {
        if (std::find(adapter.rows.begin(), adapter.rows.end(), row) == adapter.rows.end()) continue;
        const LowRankUpdate update = adapter.layout.At(adapter.memory->data());
        for (size_t p = 0; p < adapter.parts.size(); ++p) {
          const LowRankSpan& span = adapter.layout.spans[p];
          args.slices[count++] = {static_cast<const Bf16*>(update.a) + span.rank_begin * in,
                                  static_cast<const Bf16*>(update.b) + span.b,
                                  adapter.parts[p].scale,
                                  span.rank,
                                  static_cast<int32_t>(span.out_begin),
                                  static_cast<int32_t>(span.outputs),
                                  row,
                                  args.sum_count};
          args.sum_count += span.rank;
        }
      }
      args.first_slice[row + 1] = count;
    }
    for (int row = rows; row < kFusedRows; ++row) args.first_slice[row + 1] = count;
    sums_.assign(args.sum_count, kNan);
    args.sums = sums_.data();
    args.counters = counters_.data();
    return args;
  }

  // What the row's adapter adds to W x, of `x` [in].
  static Sum SumAdded(const std::vector<Adapter>& adapters, int row, const double* x, int64_t in,
                      int64_t out) {
    Sum sum;
    for (const Adapter& adapter : adapters) {
      if (std::find(adapter.rows.begin(), adapter.rows.end(), row) == adapter.rows.end()) continue;
      for (const Part& part : adapter.parts) {
        if (out < part.out_begin || out >= part.out_begin + part.outputs) continue;
        for (int64_t k = 0; k < part.rank; ++k) {
          const double weight = double{part.scale} * part.b[(out - part.out_begin) * part.rank + k];
          for (int64_t i = 0; i < in; ++i) sum.Add(x[i] * part.a[k * in + i] * weight);
        }
      }
    }
    return sum;
  }

  // Of a whole output.
  static Sum Output(const std::vector<Adapter>& adapters, int row, const double* x, const Bf16* w, int64_t in,
                    int64_t out, double bias) {
    Sum sum = SumAdded(adapters, row, x, in, out);
    sum.Add(bias);
    for (int64_t i = 0; i < in; ++i) sum.Add(x[i] * ToFloat(w[out * in + i]));
    return sum;
  }

  // `run` gets the block's rows of bf16 and its sums. The counters are as before, then.
  template <typename Run>
  void Launch(int tiles, int blocks, size_t row_bytes, const Run& run) {
    simt::Launch({static_cast<unsigned>(std::min(tiles, blocks))}, {kSkinnyThreads},
                 kSkinnySharedBytes + row_bytes, random_(), [&](char* shared) {
                   run(reinterpret_cast<Bf16*>(shared + kSkinnySharedBytes),
                       reinterpret_cast<float*>(shared));
                 });
    EXPECT_EQ(std::count(counters_.begin(), counters_.end(), 0u), counters_.size());
  }

  static std::vector<double> Normed(const float* x, int64_t stride, int rows, int64_t in,
                                    const float* weight) {
    std::vector<double> normed(rows * in);
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t k = 0; k < in; ++k) sum += double{x[r * stride + k]} * x[r * stride + k];
      for (int64_t k = 0; k < in; ++k) {
        const double value = x[r * stride + k] / std::sqrt(sum / static_cast<double>(in) + kEps) * weight[k];
        normed[r * in + k] = RoundToBf16(static_cast<float>(value));
      }
    }
    return normed;
  }

  template <typename Out>
  void CheckProduct(int rows, int64_t in, int64_t out, bool accumulate, bool with_bias, int blocks,
                    std::vector<Adapter> adapters);
  void CheckQkv(int rows, int64_t in, int heads, int kv_heads, int head_dim, bool with_bias, int blocks,
                std::vector<Adapter> adapters);
  void CheckGateUp(int rows, int64_t in, int64_t cols, bool with_bias, int blocks,
                   std::vector<Adapter> adapters);

  std::mt19937_64 random_;
  std::vector<float> sums_;
  std::vector<uint32_t> counters_ = std::vector<uint32_t>(kLeft + 1);
};

// Rows 0 and 3 have one adapter, of all outputs; 2 and 6 one of two parts that leave outputs out, 5 one of a single output.
// 1, 4 and 7 have none.
std::vector<Adapter> RaggedAdapters(int rows, int64_t out) {
  std::vector<Adapter> adapters(3);
  adapters[0].parts = {{16, out, 0, 2.0f}};
  adapters[0].rows = {0, 3};
  adapters[1].parts = {{5, out / 3, 0, 0.5f}, {67, out / 2, out - out / 2, 1.5f}};
  adapters[1].rows = {2, 6};
  adapters[2].parts = {{1, 1, out - 1, 1.0f}};
  adapters[2].rows = {5};
  for (Adapter& adapter : adapters) std::erase_if(adapter.rows, [&](int32_t row) { return row >= rows; });
  return adapters;
}

template <typename Out>
void AdaptedGemmTest::CheckProduct(int rows, int64_t in, int64_t out, bool accumulate, bool with_bias,
                                   int blocks, std::vector<Adapter> adapters) {
  SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << out << ", " << blocks << " blocks");
  constexpr DType kType = sizeof(Out) == 4 ? DType::kF32 : DType::kBf16;
  Fill(in, adapters);
  const int64_t stride = in + 8, out_stride = out + 5;
  const AlignedCopy<Bf16> x(RandomBf16(rows * stride)), w(RandomBf16(out * in));
  const AlignedCopy<float> bias(Random(out));
  std::vector<Out> before(rows * out_stride);
  for (Out& value : before) Store(&value, Random(1)[0]);
  const AlignedCopy<Out> result(before), composed(before);
  const auto args = [&](Out* to) {
    return SkinnyArgs{w.data(),
                      nullptr,
                      x.data(),
                      nullptr,
                      stride,
                      in,
                      with_bias ? bias.data() : nullptr,
                      accumulate,
                      {to, kType, rows, out, out_stride}};
  };
  const SkinnyArgs of_result = args(result.data()), of_composed = args(composed.data());
  const AddedArgs added = Added(adapters, rows, in);
  const int tiles = SkinnyTiles(out);
  Launch(tiles, blocks, 0, [&](Bf16*, float* sums) { SkinnyBf16<1>(of_result, sums, AdaptersAdded{added}); });

  Launch(tiles, blocks, 0, [&](Bf16*, float* sums) { SkinnyBf16<1>(of_composed, sums); });
  std::vector<LowRankPiece> pieces;
  for (const Adapter& adapter : adapters) {
    PlanLowRank(adapter.layout.At(adapter.memory->data()), adapter.rows, 100, 1 << 20, &pieces);
  }
  ASSERT_EQ(pieces.size(), 1);
  std::vector<float> sums(pieces[0].sums, kNan);
  const LowRankArgs low_rank{pieces[0].tiles.data(),
                             static_cast<int32_t>(pieces[0].tiles.size()),
                             pieces[0].most_rank(),
                             pieces[0].most_out_tiles(),
                             {x.data(), DType::kBf16, rows, in, stride},
                             of_composed.out,
                             sums.data()};
  const auto count = static_cast<unsigned>(low_rank.count);
  const auto ranks = static_cast<unsigned>((low_rank.most_rank + kLowRankRanks - 1) / kLowRankRanks);
  simt::Launch({count, ranks}, {kShrinkThreads}, kShrinkSharedBytes, random_(),
               [&](char* shared) { ShrinkTile<Bf16, true>(low_rank, reinterpret_cast<float*>(shared)); });
  simt::Launch({count, static_cast<unsigned>(low_rank.most_out_tiles)}, {kExpandThreads}, kExpandSharedBytes,
               random_(),
               [&](char* shared) { ExpandTile<Bf16, Out>(low_rank, reinterpret_cast<float*>(shared)); });

  std::vector<double> wide(in);
  for (int r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < in; ++i) wide[i] = ToFloat(x.data()[r * stride + i]);
    for (int64_t o = 0; o < out_stride; ++o) {
      const int64_t at = r * out_stride + o;
      const float found = Load(result.data() + at);
      ASSERT_EQ(found, Load(composed.data() + at)) << "row " << r << ", output " << o;
      if (o >= out) {
        ASSERT_EQ(found, Load(&before[at]));
        continue;
      }
      Sum wanted = Output(adapters, r, wide.data(), w.data(), in, o, with_bias ? bias.data()[o] : 0.0);
      if (accumulate) wanted.Add(Load(&before[at]));
      // A narrow result is rounded when the product is there, and again with what is added.
      const double bound = sizeof(Out) == 4 ? 1e-5 : 1.0 / 128;
      ASSERT_NEAR(found, wanted.value, bound * wanted.size) << "row " << r << ", output " << o;
    }
  }
}

void AdaptedGemmTest::CheckQkv(int rows, int64_t in, int heads, int kv_heads, int head_dim, bool with_bias,
                               int blocks, std::vector<Adapter> adapters) {
  SCOPED_TRACE(testing::Message() << rows << " rows of " << in << ", " << heads << "/" << kv_heads
                                  << " heads of " << head_dim << ", " << blocks << " blocks");
  constexpr int kBlockTokens = 4;
  Fill(in, adapters);
  const int half = head_dim / 2, q_dim = heads * head_dim, kv_dim = kv_heads * head_dim;
  const AlignedCopy<float> x(Random(rows * in)), weight(Random(in)), bias(Random(q_dim + 2 * kv_dim));
  const AlignedCopy<Bf16> w(RandomBf16((q_dim + 2 * kv_dim) * in));  // of all three
  const AlignedCopy<float> angles(Random(rows * head_dim));
  const AlignedCopy<float> q(std::vector<float>(rows * q_dim, kNan));
  // Row r is position r of a sequence of its own, whose tokens are in block r / 4 of its list.
  std::vector<int64_t> first_token;
  std::vector<SequenceEntry> entries;
  std::vector<int32_t> lists;
  for (int r = 0; r < rows; ++r) {
    first_token.push_back(r);
    entries.push_back({r, 1, r, static_cast<int64_t>(lists.size())});
    for (int b = 0; b <= r / kBlockTokens; ++b) lists.push_back(b == r / kBlockTokens ? r : rows);
  }
  const SequenceTable table{first_token.data(), entries.data(), lists.data(), rows, rows};
  const size_t plane = size_t(rows + 1) * kv_heads * kBlockTokens * head_dim;
  const AlignedCopy<Bf16> k(std::vector<Bf16>(plane, Bf16{0x7fff})),
      v(std::vector<Bf16>(plane, Bf16{0x7fff}));
  const QkvArgs args{{x.data(), in, rows, in, weight.data(), kEps},
                     w.data(),
                     w.data() + q_dim * in,
                     with_bias ? bias.data() : nullptr,
                     angles.data(),
                     q.data(),
                     q_dim,
                     heads,
                     table,
                     {k.data(), v.data(), DType::kBf16, kBlockTokens, kv_heads, head_dim}};
  const AddedArgs added = Added(adapters, rows, in);
  Launch(QkvTiles(args), blocks, FusedSharedBytes(rows, in),
         [&](Bf16* a, float* sums) { QkvBlock<Bf16>(args, a, sums, AdaptersAdded{added}); });

  const std::vector<double> a = Normed(x.data(), in, rows, in, weight.data());
  for (int r = 0; r < rows; ++r) {
    const auto output = [&](int64_t out) {
      return Output(adapters, r, &a[r * in], w.data(), in, out, with_bias ? bias.data()[out] : 0.0);
    };
    const auto page_at = [&](int head) {
      return PageOffset(r, kv_heads, head, kBlockTokens, r % kBlockTokens, head_dim);
    };
    for (int h = 0; h < heads + kv_heads; ++h) {
      const bool is_q = h < heads;
      for (int i = 0; i < half; ++i) {
        const Sum low = output(h * head_dim + i), high = output(h * head_dim + i + half);
        const double cosine = angles.data()[r * head_dim + i], sine = angles.data()[r * head_dim + half + i];
        const double wanted[] = {low.value * cosine - high.value * sine,
                                 high.value * cosine + low.value * sine};
        // Rows are rounded the other way here and there; keys are rounded before they are rotated, too.
        const double bound =
            (low.size + high.size) * (std::fabs(cosine) + std::fabs(sine)) * (is_q ? 0x1p-10 : 0x1p-7);
        for (const int d : {0, 1}) {
          const float found = is_q ? q.data()[r * q_dim + h * head_dim + i + d * half]
                                   : ToFloat(k.data()[page_at(h - heads) + i + d * half]);
          ASSERT_NEAR(found, wanted[d], bound) << "row " << r << ", head " << h << ", pair " << i;
        }
      }
    }
    for (int h = 0; h < kv_heads; ++h) {
      for (int i = 0; i < head_dim; ++i) {
        const Sum value = output(q_dim + kv_dim + h * head_dim + i);
        ASSERT_NEAR(ToFloat(v.data()[page_at(h) + i]), value.value, value.size * 0x1p-8)
            << "row " << r << ", value head " << h << ", " << i;
      }
    }
  }
}

void AdaptedGemmTest::CheckGateUp(int rows, int64_t in, int64_t cols, bool with_bias, int blocks,
                                  std::vector<Adapter> adapters) {
  SCOPED_TRACE(testing::Message() << rows << " rows, " << in << " to " << cols << ", " << blocks
                                  << " blocks");
  Fill(in, adapters);
  const AlignedCopy<float> x(Random(rows * in)), weight(Random(in)), bias(Random(2 * cols));
  const AlignedCopy<Bf16> w(RandomBf16(2 * cols * in)), out(std::vector<Bf16>(rows * cols, Bf16{0x7fff}));
  const GateArgs args{{x.data(), in, rows, in, weight.data(), kEps},
                      w.data(),
                      with_bias ? bias.data() : nullptr,
                      out.data(),
                      cols,
                      cols};
  const AddedArgs added = Added(adapters, rows, in);
  Launch(GateTiles(args), blocks, FusedSharedBytes(rows, in),
         [&](Bf16* a, float* sums) { GateUpBlock(args, a, sums, AdaptersAdded{added}); });
  const std::vector<double> a = Normed(x.data(), in, rows, in, weight.data());
  for (int r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto output = [&](int64_t at) {
        return Output(adapters, r, &a[r * in], w.data(), in, at, with_bias ? bias.data()[at] : 0.0);
      };
      const Sum gate = output(c), up = output(cols + c);
      const double silu = gate.value / (1.0 + std::exp(-gate.value));
      const double bound = 0x1p-7 * (gate.size * (std::fabs(up.value) + 0x1p-7 * up.size) +
                                     std::fabs(silu) * up.size + std::fabs(silu * up.value));
      ASSERT_NEAR(ToFloat(out.data()[r * cols + c]), silu * up.value, bound)
          << "row " << r << ", column " << c;
    }
  }
}

TEST_F(AdaptedGemmTest, ProductsAreThoseOfTwoOperationsToTheBit) {
  for (const int blocks : {1, 3, kEach}) {
    CheckProduct<float>(8, 72, 88, false, true, blocks, RaggedAdapters(8, 88));
    CheckProduct<Bf16>(7, 264, 50, false, false, blocks, RaggedAdapters(7, 50));
  }
  CheckProduct<float>(1, 2096, 33, true, false, 2, RaggedAdapters(1, 33));
  CheckProduct<float>(3, 4104, 17, true, true, 2, RaggedAdapters(3, 17));
  CheckProduct<Bf16>(4, 64, 48, true, false, 2, RaggedAdapters(4, 48));
}

TEST_F(AdaptedGemmTest, ARowIsTheSameBitsAloneAndAmongOthers) {
  const int64_t in = 136, out = 40;
  std::vector<Adapter> adapters = RaggedAdapters(8, out);
  Fill(in, adapters);
  const AlignedCopy<Bf16> x(RandomBf16(8 * in)), w(RandomBf16(out * in));
  const auto run = [&](const Bf16* from, int rows, const std::vector<Adapter>& with) {
    const AlignedCopy<float> to(std::vector<float>(rows * out, kNan));
    const SkinnyArgs args{
        w.data(), nullptr, from, nullptr, in, in, nullptr, false, {to.data(), DType::kF32, rows, out, out}};
    const AddedArgs added = Added(with, rows, in);
    Launch(SkinnyTiles(out), 2, 0,
           [&](Bf16*, float* sums) { SkinnyBf16<1>(args, sums, AdaptersAdded{added}); });
    return std::vector<float>(to.data(), to.data() + rows * out);
  };
  const std::vector<float> together = run(x.data(), 8, adapters);
  for (const int row : {0, 2, 5, 6}) {
    std::vector<Adapter> own(1);
    for (Adapter& adapter : adapters) {
      if (std::find(adapter.rows.begin(), adapter.rows.end(), row) == adapter.rows.end()) continue;
      own[0].parts = adapter.parts, own[0].layout = adapter.layout, own[0].rows = {0};
      own[0].memory = std::make_unique<AlignedCopy<char>>(
          std::vector<char>(adapter.memory->data(), adapter.memory->data() + adapter.layout.bytes));
    }
    EXPECT_EQ(run(x.data() + row * in, 1, own),
              std::vector<float>(&together[row * out], &together[row * out] + out))
        << "row " << row;
  }
}

TEST_F(AdaptedGemmTest, QueriesKeysAndValuesHaveWhatIsAddedBeforeTheyAreRotated) {
  for (const int blocks : {1, 3, kEach}) {
    const int64_t out = (2 + 2) * 32;
    CheckQkv(7, 72, 2, 1, 32, true, blocks, RaggedAdapters(7, out));
  }
  // Of each of the three alone.
  for (const int64_t begin : {0, 96, 128}) {
    std::vector<Adapter> adapters(1);
    adapters[0].parts = {{16, begin == 0 ? 96 : 32, begin, 1.5f}};
    adapters[0].rows = {1};
    CheckQkv(2, 256, 3, 1, 32, false, 2, std::move(adapters));
  }
}

TEST_F(AdaptedGemmTest, GateAndUpHaveWhatIsAddedBeforeTheyMeet) {
  for (const int blocks : {1, 2, kEach}) CheckGateUp(7, 72, 24, true, blocks, RaggedAdapters(7, 48));
  CheckGateUp(1, 2056, 16, false, 2, RaggedAdapters(1, 32));
}

}  // namespace
}  // namespace aludel::cuda
