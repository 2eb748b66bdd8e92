#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/model/adapters/lora_weights.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/cuda/fake/zero_model.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

// What steps of models of real size ask of a card, counted and not run: launches, bytes and operations of one layer and of two,
// and from these of all.
namespace aludel::cuda::fake {
namespace {

int64_t WeightBytes(WeightFormat weights) { return weights == WeightFormat::kFp8 ? 1 : 2; }

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
  const int64_t matrices = shape.hidden * (2 * shape.q_dim() + 2 * shape.kv_dim() + 3 * shape.ffn);
  return WeightBytes(types.weights) * (shape.layers * matrices + shape.vocab * shape.hidden) +
         static_cast<int64_t>(SizeOf(types.kv)) * Cached(shape, rows, context);
}

constexpr Shape kLlama3b = {"llama-3b", 28, 3072, 8192, 24, 8, 128, 128256};
constexpr Shape kLlama8b = {"llama-8b", 32, 4096, 14336, 32, 8, 128, 128256};

constexpr int64_t kContext = 1024;
constexpr double kBytesPerUs = 4.3e6;
constexpr int64_t kMostRows = 64;

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

struct StepCost {
  int64_t launches = 0;
  int64_t bytes = 0;
  int64_t copies = 0;  // between host and card

  StepCost operator+(const StepCost& other) const {
    return {launches + other.launches, bytes + other.bytes, copies + other.copies};
  }
  StepCost operator-(const StepCost& other) const { return *this + other * -1; }
  StepCost operator*(int64_t times) const { return {launches * times, bytes * times, copies * times}; }
};

// Of a decode step by rows; a token is drawn for each.
using CostsByRows = std::map<int64_t, StepCost>;

StepCost CostOfStep(TestModel& model, int64_t rows, bool fused, const Adapters& adapters = {}) {
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
  const Counts counted = counts();
  StepCost sum{counted.kernels(), 0, counted.copies};
  for (const auto& [kernel, launches] : counted.launches) {
    EXPECT_EQ(counted.costs.count(kernel), 1) << kernel << ": what it moves is not known";
  }
  for (const auto& [kernel, cost] : counted.costs) sum.bytes += cost.bytes;
  return sum;
}

// `shape`'s, from those `of` one layer and of two over a small vocabulary, whose head is replaced.
template <typename OfModel>
CostsByRows OfAllLayers(const Shape& shape, const Types& types, const OfModel& of) {
  CostsByRows small_costs[2];
  Shape small = shape;
  small.vocab = 1024;
  for (small.layers = 1; small.layers <= 2; ++small.layers) {
    const TemporaryDirectory files;
    WriteZeros(small, files.path());
    TestModel model(files.path(), {.weights = types.weights, .max_rows = kMostRows}, types.kv, kContext);
    small_costs[small.layers - 1] = of(model, files.path());
  }
  CostsByRows all;
  for (const auto& [rows, one] : small_costs[0]) {
    // The head's matrix, and logits that are written and read.
    const StepCost head{
        0, (shape.vocab - small.vocab) * (shape.hidden * WeightBytes(types.weights) + rows * 8), 0};
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
double Microseconds(const StepCost& cost, double idle_us) {
  return static_cast<double>(cost.bytes) / kBytesPerUs + static_cast<double>(cost.launches) * idle_us;
}

// Of that, the time that copying the bound takes.
double Share(int64_t bound, const StepCost& cost, double idle_us) {
  return static_cast<double>(bound) / kBytesPerUs / Microseconds(cost, idle_us);
}

// `line` stands in a table of tests/gpu/README.md.
void ExpectInReadme(const std::string& line) {
  std::ifstream file("tests/gpu/README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  std::printf("%s\n", line.c_str());
  EXPECT_NE(readme.str().find(line), std::string::npos) << "the table of tests/gpu/README.md is another";
}

TEST(StepCosts, OfModelsOfRealSize) {
  CountOnly(true);
  for (const Shape& shape : {kLlama3b, kLlama8b}) {
    const CostsByRows apart = CostsOf(shape, Types{}, /*fused=*/false);
    const CostsByRows fused = CostsOf(shape, Types{}, /*fused=*/true);
    for (const auto& [rows, now] : fused) {
      const StepCost& before = apart.at(rows);
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
      const StepCost& usual = bf16.at(rows);
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
      const StepCost& base = bases.at(rows);
      const StepCost more = with - base;
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
