#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/cuda/fake/zero_model.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

// What steps of models of real size ask of a card, counted and not run: launches, bytes and operations of one layer and of two,
// and from these of all.
namespace aludel::cuda::fake {
namespace {

// Numbers of the cache of `rows` sequences of `context` tokens each.
int64_t Cached(const Shape& shape, int64_t rows, int64_t context) {
  return shape.layers * rows * context * 2 * shape.kv_dim();
}

// Bytes that a step of them cannot do without: all matrices, and what is in the cache.
int64_t Bound(const Shape& shape, int64_t rows, int64_t context, DType kv) {
  const int64_t layer = shape.hidden * (2 * shape.q_dim() + 2 * shape.kv_dim() + 3 * shape.ffn);
  return static_cast<int64_t>(sizeof(Bf16)) * (shape.layers * layer + shape.vocab * shape.hidden) +
         static_cast<int64_t>(SizeOf(kv)) * Cached(shape, rows, context);
}

constexpr Shape kLlama3b = {"llama-3b", 28, 3072, 8192, 24, 8, 128, 128256};
constexpr Shape kLlama8b = {"llama-8b", 32, 4096, 14336, 32, 8, 128, 128256};

constexpr int64_t kContext = 1024;
constexpr int64_t kMostRows = 64;

struct Watcher final : LayerObserver {
  absl::Status OnLayer(const LayerSlice&) override { return absl::OkStatus(); }
};

struct StepCost {
  int64_t launches = 0;
  int64_t bytes = 0;

  StepCost operator+(const StepCost& other) const { return {launches + other.launches, bytes + other.bytes}; }
  StepCost operator-(const StepCost& other) const { return {launches - other.launches, bytes - other.bytes}; }
  StepCost operator*(int64_t times) const { return {launches * times, bytes * times}; }
};

// Of a decode step by rows; a token is drawn for each.
using CostsByRows = std::map<int64_t, StepCost>;

StepCost CostOfStep(TestModel& model, int64_t rows, bool fused) {
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
  std::vector<float> logits;
  ResetCounts();
  const absl::Status status = model.model().Forward(absl::MakeSpan(items), model.pool(), &logits);
  EXPECT_TRUE(status.ok()) << status;
  const Counts counted = counts();
  StepCost sum{counted.kernels(), 0};
  for (const auto& [kernel, launches] : counted.launches) {
    EXPECT_EQ(counted.costs.count(kernel), 1) << kernel << ": what it moves is not known";
  }
  for (const auto& [kernel, cost] : counted.costs) sum.bytes += cost.bytes;
  return sum;
}

// `shape`'s, from those of one layer and of two over a small vocabulary, whose head is replaced.
CostsByRows CostsOf(const Shape& shape, bool fused, DType kv = DType::kBf16) {
  CostsByRows of[2];
  Shape small = shape;
  small.vocab = 1024;
  for (small.layers = 1; small.layers <= 2; ++small.layers) {
    const TemporaryDirectory files;
    WriteZeros(small, files.path());
    TestModel model(files.path(), {.max_rows = kMostRows}, kv, kContext);
    for (const int64_t rows : {1, 4, 16, 64}) of[small.layers - 1][rows] = CostOfStep(model, rows, fused);
  }
  CostsByRows all;
  for (const auto& [rows, one] : of[0]) {
    // The head's matrix, and logits that are written and read.
    const StepCost head{0, (shape.vocab - small.vocab) * (shape.hidden * 2 + rows * 8)};
    all[rows] = one + (of[1][rows] - one) * (shape.layers - 1) + head;
  }
  return all;
}

// Of the time that copying the bound takes, at 4.3 TB/s, in that of a step whose launches each leave the memory idle for so long.
double Share(int64_t bound, const StepCost& cost, double idle_us) {
  constexpr double kBytesPerUs = 4.3e6;
  return static_cast<double>(bound) /
         (static_cast<double>(cost.bytes) + static_cast<double>(cost.launches) * idle_us * kBytesPerUs);
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
    const CostsByRows apart = CostsOf(shape, /*fused=*/false), fused = CostsOf(shape, /*fused=*/true);
    for (const auto& [rows, now] : fused) {
      const StepCost& before = apart.at(rows);
      const int64_t bound = Bound(shape, rows, kContext, DType::kBf16);
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
    const CostsByRows wide = CostsOf(shape, /*fused=*/true);
    const CostsByRows narrow = CostsOf(shape, /*fused=*/true, DType::kFp8);
    for (const auto& [rows, now] : narrow) {
      EXPECT_EQ(now.launches, wide.at(rows).launches);
      // What is there, and the step's own token once more, as it is written.
      EXPECT_EQ(wide.at(rows).bytes - now.bytes, Cached(shape, rows, kContext + 1));
      const int64_t bound = Bound(shape, rows, kContext, DType::kFp8);
      EXPECT_GE(now.bytes, bound);
      EXPECT_LE(static_cast<double>(now.bytes), 1.06 * static_cast<double>(bound));
      ExpectInReadme(absl::StrFormat("| %s | %d | %.3f | %.3f | %.3f |", shape.name, rows,
                                     static_cast<double>(Bound(shape, rows, kContext, DType::kBf16)) / 1e9,
                                     static_cast<double>(bound) / 1e9,
                                     static_cast<double>(wide.at(rows).bytes - now.bytes) / 1e9));
    }
  }
  CountOnly(false);
}

}  // namespace
}  // namespace aludel::cuda::fake
