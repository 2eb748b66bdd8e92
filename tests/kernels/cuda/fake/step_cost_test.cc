#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/model/adapters/lora_weights.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/cuda/fake/work_cost.h"
#include "tests/kernels/cuda/fake/zero_model.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

// What steps of models of real size ask of a card, counted and not run: launches, bytes and operations of one layer and of two,
// and from these of all.
namespace aludel::cuda::fake {
namespace {

int64_t WeightBytes(WeightFormat weights) { return weights == WeightFormat::kFp8 ? 1 : 2; }

// Numbers of a layer's matrices.
int64_t Matrices(const Shape& shape) {
  return shape.hidden * (2 * shape.q_dim() + 2 * shape.kv_dim() + 3 * shape.ffn);
}

// Numbers of the cache of `rows` sequences of `context` tokens each.
int64_t Cached(const Shape& shape, int64_t rows, int64_t context) {
  return shape.layers * rows * context * 2 * shape.kv_dim();
}

// The types of what a step reads.
struct Types {
  WeightFormat weights = WeightFormat::kBf16;
  DType kv = DType::kBf16;
};

// Bytes that a step of them cannot do without: all matrices, and what is in the cache.
int64_t Bound(const Shape& shape, const Types& types, int64_t rows, int64_t context) {
  return WeightBytes(types.weights) * (shape.layers * Matrices(shape) + shape.vocab * shape.hidden) +
         static_cast<int64_t>(SizeOf(types.kv)) * Cached(shape, rows, context);
}

constexpr Shape kLlama3b = {"llama-3b", 28, 3072, 8192, 24, 8, 128, 128256};
constexpr Shape kLlama8b = {"llama-8b", 32, 4096, 14336, 32, 8, 128, 128256};

constexpr int64_t kContext = 1024;
constexpr int64_t kMostRows = 64;
constexpr int64_t kPrefillRows = 2048;  // of a step, as servers take it on a GPU

// Operations of prefill: all matrices for each token, each token's attention to those up to it, and one token's logits. In steps
// before the last one the last layer ends with its queries, keys and values.
int64_t PrefillFlops(const Shape& shape, int64_t tokens) {
  const auto attention = [&](int64_t count) { return 4 * shape.q_dim() * count * (count + 1) / 2; };
  const int64_t earlier = (tokens - 1) / kPrefillRows * kPrefillRows;
  return shape.layers * (2 * Matrices(shape) * tokens + attention(tokens)) -
         2 * shape.hidden * (shape.q_dim() + 3 * shape.ffn) * earlier - attention(earlier) +
         2 * shape.hidden * shape.vocab;
}

// Of a batch, at most, and what one adds to the weights that a step reads: of rank kRank over every linear layer.
constexpr int64_t kMostAdapters = 8;
constexpr int64_t kRank = 16;
int64_t AdapterBytes(const Shape& shape) {
  const int64_t attention = 4 * shape.hidden + 2 * shape.q_dim() + 2 * shape.kv_dim();
  return static_cast<int64_t>(sizeof(Bf16)) * kRank * shape.layers *
         (attention + 3 * (shape.hidden + shape.ffn));
}
using Adapters = std::vector<std::unique_ptr<LoraWeights>>;

struct Watcher final : LayerObserver {
  absl::Status OnLayer(const LayerSlice&) override { return absl::OkStatus(); }
};

// Of a decode step by rows, a token is drawn for each; or of prefill by tokens.
using CostsByRows = std::map<int64_t, WorkCost>;

WorkCost CostOfStep(TestModel& model, int64_t rows, bool fused, const Adapters& adapters = {}) {
  const int32_t id = 5;
  Watcher watcher;
  std::vector<BatchItem> items(rows);
  for (BatchItem& item : items) {
    item.ids = absl::MakeConstSpan(&id, 1);
    item.position = kContext - 1;
    item.blocks = model.table().ids();
    item.draw = RowSampling{};
    if (!fused) item.observer = &watcher;  // wants to see what stands between the operations
  }
  for (size_t i = 0; i < items.size() && !adapters.empty(); ++i) {
    items[i].adapter = adapters[i % adapters.size()].get();
  }
  std::vector<float> logits;
  ResetCounts();
  const absl::Status status = model.model().Forward(absl::MakeSpan(items), model.pool(), &logits);
  EXPECT_TRUE(status.ok()) << status;
  return CountedWork();
}

// A prompt of so many tokens, in a server's steps; a token is drawn behind it.
WorkCost CostOfPrefill(TestModel& model, int64_t tokens) {
  const std::vector<int32_t> ids(tokens, 5);
  ResetCounts();
  for (int64_t begin = 0; begin < tokens; begin += kPrefillRows) {
    BatchItem item;
    item.ids = absl::MakeConstSpan(ids).subspan(begin, kPrefillRows);
    item.position = begin;
    item.blocks = model.table().ids();
    if (begin + kPrefillRows >= tokens) item.draw = RowSampling{};
    std::vector<float> logits;
    const absl::Status status = model.model().Forward(absl::MakeSpan(&item, 1), model.pool(), &logits);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_TRUE(model.device()->Synchronize(model.model().stream()).ok());
  return CountedWork();
}

// Of a model that is counted.
struct Room {
  int64_t rows = kMostRows;  // of a step
  int64_t tokens = kContext;
  int64_t logits = 0;  // rows of them, where these are not the step's
};

// `shape`'s, from those `of` one layer and of two over a small vocabulary, whose head is replaced.
template <typename OfModel>
CostsByRows OfAllLayers(const Shape& shape, const Types& types, const OfModel& of, const Room& room = {}) {
  CostsByRows small_costs[2];
  Shape small = shape;
  small.vocab = 1024;
  for (small.layers = 1; small.layers <= 2; ++small.layers) {
    const TemporaryDirectory files;
    WriteZeros(small, files.path());
    TestModel model(files.path(), {.weights = types.weights, .max_rows = room.rows}, types.kv, room.tokens);
    small_costs[small.layers - 1] = of(model, files.path());
  }
  CostsByRows all;
  for (const auto& [rows, one] : small_costs[0]) {
    // The head's matrix, and logits that are written and read.
    const int64_t outputs = shape.vocab - small.vocab, logits = room.logits > 0 ? room.logits : rows;
    const int64_t bytes = outputs * (shape.hidden * WeightBytes(types.weights) + logits * 8);
    const WorkCost head{0, bytes, 2 * logits * outputs * shape.hidden,
                        0, 0,     static_cast<double>(bytes) / kBytesPerUs};
    all[rows] = one + (small_costs[1][rows] - one) * (shape.layers - 1) + head;
  }
  return all;
}

CostsByRows CostsOf(const Shape& shape, const Types& types, bool fused) {
  return OfAllLayers(shape, types, [&](TestModel& model, const std::string&) {
    CostsByRows costs;
    for (const int64_t rows : {1, 4, 16, 64}) costs[rows] = CostOfStep(model, rows, fused);
    return costs;
  });
}

Adapters MakeAdapters(TestModel& model, const std::string& base) {
  const TemporaryDirectory files;
  Adapters adapters;
  for (uint64_t seed = 1; seed <= kMostAdapters; ++seed) {
    const std::string directory = files.File(std::to_string(seed));
    EXPECT_TRUE(MakeAdapter({.base = base, .out = directory, .rank = kRank, .seed = seed}).ok());
    adapters.push_back(
        LoraWeights::Load(model.device(), directory, {base, model.model().hash(), model.model().config()})
            .value());
  }
  return adapters;
}

// Of steps whose rows have adapters of their own, or two the same one, or are all of the base alone.
CostsByRows CostsOfAdapters(const Shape& shape, bool with) {
  return OfAllLayers(shape, Types{}, [&](TestModel& model, const std::string& base) {
    const Adapters adapters = with ? MakeAdapters(model, base) : Adapters();
    CostsByRows costs;
    for (const int64_t rows : {4, 8, 16}) costs[rows] = CostOfStep(model, rows, /*fused=*/true, adapters);
    return costs;
  });
}

// Of a step, at 4.3 TB/s, whose launches each leave the memory idle for so long.
double Microseconds(const WorkCost& cost, double idle_us) {
  return static_cast<double>(cost.bytes) / kBytesPerUs + static_cast<double>(cost.launches) * idle_us;
}

// Of that, the time that copying the bound takes.
double Share(int64_t bound, const WorkCost& cost, double idle_us) {
  return static_cast<double>(bound) / kBytesPerUs / Microseconds(cost, idle_us);
}

TEST(StepCosts, OfModelsOfRealSize) {
  CountOnly(true);
  for (const Shape& shape : {kLlama3b, kLlama8b}) {
    const CostsByRows apart = CostsOf(shape, Types{}, /*fused=*/false);
    const CostsByRows fused = CostsOf(shape, Types{}, /*fused=*/true);
    for (const auto& [rows, now] : fused) {
      const WorkCost& before = apart.at(rows);
      const int64_t bound = Bound(shape, Types{}, rows, kContext);
      // One launch reads each matrix, and nothing else comes near it. What a kernel reads is what fake_traffic.cc says of
      // it: one that read its matrix twice would not be noticed here.
      EXPECT_GE(now.bytes, bound);
      EXPECT_LE(static_cast<double>(now.bytes), 1.05 * static_cast<double>(bound));
      EXPECT_LE(now.launches, before.launches);
      EXPECT_LE(now.bytes, before.bytes);
      if (rows <= 4) {
        EXPECT_LE(now.launches, 180);
      }
      ExpectInReadme(absl::StrFormat(
          "| %s | %d | %d | %d | %.3f | %.3f | %.3f | %.2f | %.2f | %.2f | %.2f |", shape.name, rows,
          before.launches, now.launches, static_cast<double>(bound) / 1e9,
          static_cast<double>(before.bytes) / 1e9, static_cast<double>(now.bytes) / 1e9,
          Share(bound, before, 7), Share(bound, now, 7), Share(bound, before, 3), Share(bound, now, 3)));
    }
  }
  CountOnly(false);
}

TEST(StepCosts, OfPrefill) {
  CountOnly(true);
  for (const Shape& shape : {kLlama3b, kLlama8b}) {
    constexpr int64_t kTokens[] = {1024, 4096};
    const Room room{kPrefillRows, kTokens[1], 1};
    const CostsByRows costs = OfAllLayers(
        shape, Types{},
        [&](TestModel& model, const std::string&) {
          CostsByRows of_model;
          for (const int64_t tokens : kTokens) of_model[tokens] = CostOfPrefill(model, tokens);
          return of_model;
        },
        room);
    for (const auto& [tokens, cost] : costs) {
      const int64_t steps = (tokens + kPrefillRows - 1) / kPrefillRows;
      EXPECT_EQ(cost.flops, PrefillFlops(shape, tokens));
      // A layer's are those of a decode step that is not fused.
      EXPECT_LE(cost.launches, steps * (12 * shape.layers + 5));
      const double bound_us = static_cast<double>(cost.flops) / kFlopsPerUs;
      const auto share = [&, &cost = cost](double idle_us) {
        return bound_us / (cost.kernels_us + static_cast<double>(cost.launches) * idle_us);
      };
      EXPECT_GE(share(7), 0.6);  // the goal on a card, at 4,096 tokens
      ExpectInReadme(absl::StrFormat(
          "| %s | %d | %d | %d | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | %.2f |", shape.name, tokens, steps,
          cost.launches, static_cast<double>(cost.flops) / 1e12, static_cast<double>(cost.bytes) / 1e9,
          bound_us / 1e3, cost.kernels_us / 1e3, share(0), share(3), share(7)));
    }
  }
  CountOnly(false);
}

TEST(StepCosts, ACacheOfFp8IsReadAndWrittenByHalf) {
  CountOnly(true);
  for (const Shape& shape : {kLlama3b, kLlama8b}) {
    const Types narrow{.kv = DType::kFp8};
    const CostsByRows wide = CostsOf(shape, Types{}, /*fused=*/true);
    for (const auto& [rows, now] : CostsOf(shape, narrow, /*fused=*/true)) {
      EXPECT_EQ(now.launches, wide.at(rows).launches);
      // What is there, and the step's own token once more, as it is written.
      EXPECT_EQ(wide.at(rows).bytes - now.bytes, Cached(shape, rows, kContext + 1));
      const int64_t bound = Bound(shape, narrow, rows, kContext);
      EXPECT_GE(now.bytes, bound);
      EXPECT_LE(static_cast<double>(now.bytes), 1.06 * static_cast<double>(bound));
      ExpectInReadme(absl::StrFormat("| %s | %d | %.3f | %.3f | %.3f |", shape.name, rows,
                                     static_cast<double>(Bound(shape, Types{}, rows, kContext)) / 1e9,
                                     static_cast<double>(bound) / 1e9,
                                     static_cast<double>(wide.at(rows).bytes - now.bytes) / 1e9));
    }
  }
  CountOnly(false);
}

// Steps of up to 16 rows read each matrix once, by one launch for each product; those of more want codes for the rows as well.
TEST(StepCosts, OfWeightsInFp8) {
  CountOnly(true);
  const Types narrow{.weights = WeightFormat::kFp8};
  for (const Shape& shape : {kLlama3b, kLlama8b}) {
    const CostsByRows bf16 = CostsOf(shape, Types{}, /*fused=*/true);
    for (const auto& [rows, fp8] : CostsOf(shape, narrow, /*fused=*/true)) {
      const WorkCost& usual = bf16.at(rows);
      const int64_t bound = Bound(shape, narrow, rows, kContext);
      EXPECT_GE(fp8.bytes, bound);
      EXPECT_LE(static_cast<double>(fp8.bytes), 1.08 * static_cast<double>(bound));
      ExpectInReadme(absl::StrFormat(
          "| %s | %d | %d | %d | %.3f | %.3f | %.3f | %.2f | %.2f | %.2f | %.2f | %.2f |", shape.name, rows,
          usual.launches, fp8.launches, static_cast<double>(usual.bytes) / 1e9,
          static_cast<double>(bound) / 1e9, static_cast<double>(fp8.bytes) / 1e9, Share(bound, fp8, 7),
          Share(bound, fp8, 3), Microseconds(fp8, 0) / Microseconds(usual, 0),
          Microseconds(fp8, 3) / Microseconds(usual, 3), Microseconds(fp8, 7) / Microseconds(usual, 7)));
    }
  }
  CountOnly(false);
}

// Their weights are read once and nothing else comes near them. Up to eight rows they are no launch and no copy more; more rows
// have two launches and a copy more for each product.
TEST(StepCosts, OfAdaptersBesideTheirBase) {
  CountOnly(true);
  for (const Shape& shape : {kLlama3b, kLlama8b}) {
    const CostsByRows bases = CostsOfAdapters(shape, false), all = CostsOfAdapters(shape, true);
    for (const auto& [rows, with] : all) {
      const WorkCost& base = bases.at(rows);
      const WorkCost more = with - base;
      const auto weights = static_cast<double>(std::min(rows, kMostAdapters) * AdapterBytes(shape));
      EXPECT_GE(static_cast<double>(more.bytes), weights);
      EXPECT_LE(static_cast<double>(more.bytes), (rows <= 8 ? 1.01 : 1.25) * weights);
      constexpr int64_t kProducts = 5;  // queries, keys with values, outputs, gate with up, down
      EXPECT_EQ(more.launches, rows <= 8 ? 0 : 2 * kProducts * shape.layers);
      // Where each product has a table of its own, those of the sequences are forgotten between layers, and copied again.
      EXPECT_LE(more.copies, rows <= 8 ? 0 : (kProducts + 1) * shape.layers);
      const auto ratio = [&, &base = base, &with = with](double idle_us) {
        return Microseconds(with, idle_us) / Microseconds(base, idle_us);
      };
      // The goal is a tenth at most.
      for (const double idle_us : {0, 3, 7}) EXPECT_LE(ratio(idle_us), rows <= 8 ? 1.1 : 1.5);
      ExpectInReadme(
          absl::StrFormat("| %s | %d | %d | %d | %d | %d | %.3f | %.3f | %.3f | %.2f | %.2f | %.2f |",
                          shape.name, rows, base.launches, with.launches, base.copies, with.copies,
                          weights / 1e9, static_cast<double>(base.bytes) / 1e9,
                          static_cast<double>(with.bytes) / 1e9, ratio(0), ratio(3), ratio(7)));
    }
  }
  CountOnly(false);
}

}  // namespace
}  // namespace aludel::cuda::fake
