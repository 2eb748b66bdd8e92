// A whole model's prefill and decode against what the machine allows, measured in the same run:
//
//   build/release/bin/model_bench --model=DIR [--device=cpu|cuda:0] [--threads=2] [--cores=0,1]
//       [--graphs=on|off] [--dependent-launch=off|on] [--batch-gemm=on|off] [--time-algorithms=on|off] [--weights=int8]
//       [--chunk=1024] [--prefill=128,512,1024] [--decode=1:64,8:512] [Google Benchmark's flags]
//
// Prefill of so many tokens, `chunk` at a time: floating-point operations of the matrix products alone over
// those that the library does in the same time (`of_gemm`, see bounds.h). Decode of batch:context: bytes of
// weights that a step must read over what the memory gives (`of_bandwidth`); a batch shares them.
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"
#include "runtime/model/transformer_options.h"
#include "tests/bench/bench_device.h"
#include "tests/bench/bounds.h"

namespace aludel {
namespace {

struct Flags {
  BenchFlags bench;
  std::string model;
  int64_t chunk = 1024;
  DType compute = DType::kBf16;
  std::optional<WeightFormat> weights;

  WeightFormat format() const { return weights.value_or(FormatOf(compute)); }
} flags;

constexpr int kBlockTokens = 16;

Device& TheDevice() {
  static const auto* const device = new std::unique_ptr<Device>(OpenBenchDevice(flags.bench));
  return **device;
}

Transformer& Model() {
  static Transformer* const model = [] {
    TransformerOptions options;
    options.max_rows = flags.chunk;
    options.compute = flags.compute;
    options.weights = flags.weights;
    auto loaded = Transformer::Load(&TheDevice(), flags.model, options);
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

// Seconds of the library alone for all layers' products.
double LibrarySeconds(const ModelConfig& config, int64_t rows) {
  double seconds = 0;
  for (const Shape& shape : LayerShapes(config)) {
    seconds += static_cast<double>(config.layers) * 2e-9 * static_cast<double>(rows * shape.out * shape.in) /
               PeakGemm(TheDevice(), rows, shape.out, shape.in, flags.bench.device.threads);
  }
  return seconds;
}

// `sequences` sequences with room for `tokens` tokens each.
struct Batch {
  Batch(int sequences, int64_t tokens) : tables(sequences) {
    const int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
    pool =
        BlockPool::Create(&TheDevice(), Model().MakeKvLayout(blocks * sequences, kBlockTokens, DType::kBf16))
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
      item.draw = RowSampling{};  // as servers do: logits stay where they are
      items.push_back(item);
    }
    const absl::Status status = Model().Forward(absl::MakeSpan(items), *pool, &logits);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::exit(1);
    }
  }
};

void Prefill(benchmark::State& state, int64_t rows) {
  const double library = LibrarySeconds(Model().config(), rows);
  Batch batch(1, rows);
  const auto run = [&] {
    for (int64_t at = 0; at < rows; at += flags.chunk) {
      batch.Forward(at, std::min(flags.chunk, rows - at));
    }
  };
  run();
  for (auto _ : state) run();
  const auto tokens = static_cast<double>(state.iterations() * rows);
  state.counters["tokens/s"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate);
  state.counters["of_gemm"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * library, benchmark::Counter::kIsRate);
}

void Decode(benchmark::State& state, int sequences, int64_t context) {
  const double bytes = Parameters(Model().config(), true) * BitsPerWeight(flags.format()) / 8;
  const double bandwidth = Bandwidth(TheDevice(), flags.bench.device.threads);
  Batch batch(sequences, context + 1);
  const int64_t rows = std::max<int64_t>(1, flags.chunk / sequences);
  for (int64_t at = 0; at < context; at += rows) batch.Forward(at, std::min(rows, context - at));
  for (auto _ : state) batch.Forward(context, 1);
  const auto steps = static_cast<double>(state.iterations());
  state.counters["tokens/s"] = benchmark::Counter(steps * sequences, benchmark::Counter::kIsRate);
  state.counters["of_bandwidth"] =
      benchmark::Counter(steps * bytes * 1e-9 / bandwidth, benchmark::Counter::kIsRate);
}

// "1:64,8:512" as pairs, or nothing; without a colon the second is 0.
std::optional<std::vector<std::pair<int, int64_t>>> ParsePairs(const std::string& text) {
  std::vector<std::pair<int, int64_t>> pairs;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::vector<absl::string_view> parts = absl::StrSplit(item, ':');
    std::pair<int, int64_t> pair{0, 0};
    if (parts.size() > 2 || !absl::SimpleAtoi(parts[0], &pair.first) || pair.first < 1) return std::nullopt;
    if (parts.size() == 2 && !absl::SimpleAtoi(parts[1], &pair.second)) return std::nullopt;
    pairs.push_back(pair);
  }
  return pairs;
}

bool ParseFlags(int* argc, char** argv) {
  BenchFlags& bench = flags.bench = ParseBenchFlags(argc, argv);
  flags.model = bench.Take("model", "");
  if (!absl::SimpleAtoi(bench.Take("chunk", "1024"), &flags.chunk) || flags.chunk < 1) return false;
  if (bench.Take("compute", "bf16") == "f32") flags.compute = DType::kF32;
  if (const std::string weights = bench.Take("weights", ""); !weights.empty()) {
    flags.weights = ParseWeightFormat(weights);
    if (!flags.weights.has_value()) return false;
  }
  const auto prefill = ParsePairs(bench.Take("prefill", "128,512,1024"));
  const auto decode = ParsePairs(bench.Take("decode", "1:64,1:512,8:64,8:512"));
  if (!prefill.has_value() || !decode.has_value() || flags.model.empty() || !bench.others.empty())
    return false;
  for (const auto& [tokens, none] : *prefill) {
    benchmark::RegisterBenchmark(absl::StrCat("Prefill/", tokens).c_str(), Prefill, tokens)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
  for (const auto& [batch, context] : *decode) {
    const std::string name = absl::StrCat("Decode/batch:", batch, "/context:", context);
    benchmark::RegisterBenchmark(name.c_str(), Decode, batch, context)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
  return true;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  if (!aludel::ParseFlags(&argc, argv)) {
    std::fprintf(
        stderr,
        "usage: model_bench --model=DIR [--device=NAME] [--threads=N] [--cores=LIST] [--graphs=on|off] "
        "[--dependent-launch=off|on] [--batch-gemm=on|off] [--time-algorithms=on|off] [--compute=bf16|f32] "
        "[--weights=int8|int4] [--chunk=N] "
        "[--prefill=TOKENS,...] "
        "[--decode=BATCH:CONTEXT,...] "
        "[--benchmark_...]\n");
    return 1;
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
