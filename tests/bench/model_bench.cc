// A whole model's prefill and decode against what the machine allows, measured in the same run:
//
//   build/release/bin/model_bench --model=DIR [--threads=2] [--cores=0,1] [--weights=int8] [Google
//   Benchmark's flags]
//
// Prefill: floating-point operations of the matrix products alone over those that oneDNN does in the same
// time on the same shapes (`of_gemm`). Decode: bytes of weights that a step must read over what as many
// threads read (`of_bandwidth`); a batch shares them.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "kernels/core_list.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"
#include "tests/bench/bounds.h"

namespace aludel {
namespace {

struct Flags {
  std::string model;
  int threads = 2;
  std::vector<int> cores;
  DType compute = DType::kBf16;
  std::optional<WeightFormat> weights;

  WeightFormat format() const { return weights.value_or(FormatOf(compute)); }
} flags;

constexpr int kBlockTokens = 16;
constexpr int kMaxRows = 1024;

Device& CpuDevice() {
  static const auto* const device = new std::unique_ptr<Device>(
      OpenDevice({.name = "cpu", .threads = flags.threads, .cores = flags.cores}).value());
  return **device;
}

Transformer& Model() {
  static Transformer* const model = [] {
    TransformerOptions options;
    options.max_rows = kMaxRows;
    options.compute = flags.compute;
    options.weights = flags.weights;
    auto loaded = Transformer::Load(&CpuDevice(), flags.model, options);
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
      std::exit(1);
    }
    return loaded->release();
  }();
  return *model;
}

struct Shape {
  int64_t out, in;
};

// The matrices of a layer as they are multiplied.
std::vector<Shape> LayerShapes(const ModelConfig& config) {
  return {{config.q_dim(), config.hidden},
          {2 * config.kv_dim(), config.hidden},
          {config.hidden, config.q_dim()},
          {2 * config.ffn, config.hidden},
          {config.hidden, config.ffn}};
}

double Parameters(const ModelConfig& config, bool with_head) {
  double sum = with_head ? static_cast<double>(config.vocab) * static_cast<double>(config.hidden) : 0.0;
  for (const Shape& shape : LayerShapes(config)) {
    sum += static_cast<double>(config.layers) * static_cast<double>(shape.out * shape.in);
  }
  return sum;
}

// Seconds of oneDNN alone for all layers' products.
double LibrarySeconds(const ModelConfig& config, int64_t rows) {
  double seconds = 0;
  for (const Shape& shape : LayerShapes(config)) {
    seconds += static_cast<double>(config.layers) * 2e-9 * static_cast<double>(rows * shape.out * shape.in) /
               LibraryGemm(rows, shape.out, shape.in, flags.threads);
  }
  return seconds;
}

// `sequences` sequences with room for `tokens` tokens each.
struct Batch {
  Batch(int sequences, int64_t tokens) : tables(sequences) {
    const int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
    pool =
        BlockPool::Create(&CpuDevice(), Model().MakeKvLayout(blocks * sequences, kBlockTokens, DType::kBf16))
            .value();
    for (BlockTable& table : tables) {
      if (!table.Grow(*pool, tokens).ok()) std::abort();
    }
  }
  std::unique_ptr<BlockPool> pool;
  std::vector<BlockTable> tables;
  std::vector<float> logits;

  // `rows` tokens of every sequence at `position`.
  void Forward(int64_t position, int64_t rows) {
    std::vector<int32_t> ids(rows);
    for (int64_t i = 0; i < rows; ++i)
      ids[i] = static_cast<int32_t>((position + i) * 37 % Model().config().vocab);
    std::vector<BatchItem> items;
    for (const BlockTable& table : tables) {
      BatchItem item;
      item.ids = ids;
      item.position = position;
      item.blocks = table.ids();
      item.wants_logits = true;
      items.push_back(item);
    }
    const absl::Status status = Model().Forward(absl::MakeSpan(items), *pool, &logits);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::exit(1);
    }
  }
};

void Prefill(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const double library = LibrarySeconds(Model().config(), rows);
  Batch batch(1, rows);
  batch.Forward(0, rows);
  for (auto _ : state) batch.Forward(0, rows);
  const auto tokens = static_cast<double>(state.iterations() * rows);
  state.counters["tokens/s"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate);
  state.counters["of_gemm"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * library, benchmark::Counter::kIsRate);
}
BENCHMARK(Prefill)->Arg(128)->Arg(512)->Arg(1024)->Unit(benchmark::kMillisecond)->UseRealTime();

void Decode(benchmark::State& state) {
  const int sequences = static_cast<int>(state.range(0));
  const int64_t context = state.range(1);
  const double bytes = Parameters(Model().config(), true) * BitsPerWeight(flags.format()) / 8;
  const double bandwidth = ReadBandwidth(flags.threads);
  Batch batch(sequences, context + 1);
  for (int64_t at = 0; at < context; at += kMaxRows / sequences) {
    batch.Forward(at, std::min<int64_t>(kMaxRows / sequences, context - at));
  }
  for (auto _ : state) batch.Forward(context, 1);
  const auto steps = static_cast<double>(state.iterations());
  state.counters["tokens/s"] = benchmark::Counter(steps * sequences, benchmark::Counter::kIsRate);
  state.counters["of_bandwidth"] =
      benchmark::Counter(steps * bytes * 1e-9 / bandwidth, benchmark::Counter::kIsRate);
}
BENCHMARK(Decode)
    ->ArgNames({"batch", "context"})
    ->Args({1, 64})
    ->Args({1, 512})
    ->Args({8, 64})
    ->Args({8, 512})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--model=")) {
      aludel::flags.model = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--threads=")) {
      if (!absl::SimpleAtoi(argument, &aludel::flags.threads)) return 1;
    } else if (absl::ConsumePrefix(&argument, "--cores=")) {
      const auto cores = aludel::ParseCoreList(argument);
      if (!cores.ok()) return 1;
      aludel::flags.cores = *cores;
    } else if (absl::ConsumePrefix(&argument, "--compute=")) {
      aludel::flags.compute = argument == "f32" ? aludel::DType::kF32 : aludel::DType::kBf16;
    } else if (absl::ConsumePrefix(&argument, "--weights=")) {
      aludel::flags.weights = aludel::ParseWeightFormat(argument);
      if (!aludel::flags.weights.has_value()) return 1;
    } else {
      argv[kept++] = argv[i];
    }
  }
  benchmark::Initialize(&kept, argv);
  if (aludel::flags.model.empty() || benchmark::ReportUnrecognizedArguments(kept, argv)) {
    std::fprintf(stderr,
                 "usage: model_bench --model=DIR [--threads=N] [--cores=LIST] [--compute=bf16|f32] "
                 "[--weights=int8|int4] [--benchmark_...]\n");
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
