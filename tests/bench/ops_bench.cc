// The operations of a forward pass at a model's sizes against what the machine allows in the same run:
//
//   build/release/bin/ops_bench [--device=cpu|cuda:0] [--threads=2] [--instructions=wgmma] [--shape=1b|8b]
//       [--persistent-attention=on|off] [--batch-gemm=on|off] [--time-algorithms=on|off] [--benchmark_filter=...]
//
// `of_gemm`: the rate of the library's matrix product, oneDNN's on the same matrices or the card's best
// (bounds.h). `of_bandwidth`: bytes that must be read and written (weights, pages, activations) over what the
// memory gives; what lies in the caches may go above 1. On a card several launches follow each other before
// the host waits, as in a forward pass.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops.h"
#include "tests/bench/bench_device.h"
#include "tests/bench/bounds.h"
#include "tests/kernels/device_array.h"

namespace aludel {
namespace {

struct Shape {
  int hidden, ffn, heads, kv_heads, head_dim;
};
constexpr Shape k1B = {2048, 8192, 32, 8, 64};
constexpr Shape k8B = {4096, 14336, 32, 8, 128};
constexpr int kBlockTokens = 16;
constexpr int64_t kVocab = 128256;

// What the benchmarks share.
struct Bench {
  explicit Bench(BenchFlags* flags)
      : device(OpenBenchDevice(*flags)),
        threads(flags->device.threads),
        launches(device->name() == "cpu" ? 1 : 16),
        shape(flags->Take("shape", "1b") == "8b" ? k8B : k1B) {}

  std::unique_ptr<Device> device;
  int threads;
  int launches;  // between two waits of the host
  Shape shape;

  // Normal numbers, a pattern of a million of them over and over.
  template <typename T>
  DeviceArray<T> Random(size_t count) const {
    static const std::vector<float>* const pattern = [] {
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      auto* const values = new std::vector<float>((1 << 20) - 3);
      for (float& value : *values) value = normal(random);
      return values;
    }();
    std::vector<T> values(count);
    for (size_t i = 0; i < count; ++i) {
      if constexpr (std::is_same_v<T, Bf16>) {
        values[i] = ToBf16((*pattern)[i % pattern->size()]);
      } else {
        values[i] = (*pattern)[i % pattern->size()];
      }
    }
    return DeviceArray<T>(*device, values);
  }

  // Times `launch` and counts its floating-point operations and bytes.
  template <typename Launch>
  void Run(benchmark::State& state, double flops, double gemm, double bytes, Launch launch) const {
    launch();
    Finish(*device);
    while (state.KeepRunningBatch(launches)) {
      for (int i = 0; i < launches; ++i) launch();
      Finish(*device);
    }
    const auto count = static_cast<double>(state.iterations());
    const auto rate = [](double value) { return benchmark::Counter(value, benchmark::Counter::kIsRate); };
    if (flops > 0) state.counters["GFLOP/s"] = rate(count * flops * 1e-9);
    if (gemm > 0) state.counters["of_gemm"] = rate(count * flops * 1e-9 / gemm);
    state.SetBytesProcessed(static_cast<int64_t>(count * bytes));
    state.counters["of_bandwidth"] = rate(count * bytes * 1e-9 / Bandwidth(*device, threads));
  }
};

// Weights of several copies in turn: a model's do not wait in the caches. `of_gemm` is of the product in bf16, whatever the
// weights are.
void Gemm(benchmark::State& state, const Bench& bench, int64_t rows, int64_t out, int64_t in,
          WeightFormat format) {
  constexpr int64_t kBytes = 256 << 20;
  const auto copies = static_cast<size_t>(std::max<int64_t>(1, kBytes / (2 * out * in)));
  std::vector<Bf16> values(static_cast<size_t>(out * in), ToBf16(0.5f));
  std::mt19937 random(1);
  for (Bf16& value : values) value.bits ^= static_cast<uint16_t>(random() & 0x807f);  // signs and mantissas
  Ops& ops = bench.device->ops();
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  for (size_t i = 0; i < copies; ++i) {
    packed.push_back(ops.Pack(TensorView::Of(values.data(), out, in), format).value());
  }
  const DeviceArray<Bf16> a = bench.Random<Bf16>(rows * in);
  const DeviceArray<float> result = bench.Random<float>(rows * out);
  size_t next = 0;
  const auto products = static_cast<double>(out) * static_cast<double>(in);
  bench.Run(state, 2 * products * static_cast<double>(rows),
            PeakGemm(*bench.device, rows, out, in, bench.threads), BitsPerWeight(format) / 8 * products, [&] {
              ops.Gemm(a.View(rows, in), *packed[next++ % copies], nullptr, false, result.View(rows, out),
                       {});
            });
}

// `rows` new tokens of `sequences` sequences behind `context` others, over bf16 pages.
void Attention(benchmark::State& state, const Bench& bench, int64_t sequences, int64_t rows,
               int64_t context) {
  const Shape& shape = bench.shape;
  const int64_t blocks = (context + rows + kBlockTokens - 1) / kBlockTokens;
  const int64_t q_dim = int64_t{shape.heads} * shape.head_dim;
  const int64_t values = sequences * blocks * kBlockTokens * shape.kv_heads * shape.head_dim;
  const DeviceArray<Bf16> k = bench.Random<Bf16>(values), v = bench.Random<Bf16>(values);
  std::vector<int32_t> ids(sequences * blocks);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::vector<SequenceRows> batch;
  for (int64_t s = 0; s < sequences; ++s) {
    batch.push_back({s * rows, rows, context, absl::MakeConstSpan(ids).subspan(s * blocks, blocks)});
  }
  const DeviceArray<float> q = bench.Random<float>(sequences * rows * q_dim);
  const DeviceArray<Bf16> out = bench.Random<Bf16>(sequences * rows * q_dim);
  const PagedKv kv{k.data(), v.data(), DType::kBf16, kBlockTokens, shape.kv_heads, shape.head_dim};
  const AttentionParams params{shape.heads, shape.kv_heads, shape.head_dim,
                               1.0f / std::sqrt(static_cast<float>(shape.head_dim))};
  const double keys = static_cast<double>(context) + (static_cast<double>(rows) + 1) / 2;
  bench.Run(state, 4.0 * static_cast<double>(sequences * rows) * keys * static_cast<double>(q_dim),
            PeakGemm(*bench.device, 512, shape.hidden, shape.hidden, bench.threads),
            2.0 * 2.0 * static_cast<double>(values), [&] {
              bench.device->ops().Attention(q.View(sequences * rows, q_dim), params, batch, kv,
                                            out.View(sequences * rows, q_dim), {});
            });
}

void RmsNorm(benchmark::State& state, const Bench& bench, int64_t rows) {
  const int64_t cols = bench.shape.hidden;
  const DeviceArray<float> x = bench.Random<float>(rows * cols), weight = bench.Random<float>(cols);
  const DeviceArray<Bf16> out = bench.Random<Bf16>(rows * cols);
  bench.Run(state, 0, 0, 6.0 * static_cast<double>(rows * cols), [&] {
    bench.device->ops().RmsNorm(x.View(rows, cols), weight.data(), 1e-5f, out.View(rows, cols), {});
  });
}

void SiluMul(benchmark::State& state, const Bench& bench, int64_t rows) {
  const int64_t cols = bench.shape.ffn;
  const DeviceArray<Bf16> gate_up = bench.Random<Bf16>(rows * 2 * cols),
                          out = bench.Random<Bf16>(rows * cols);
  bench.Run(state, 0, 0, 6.0 * static_cast<double>(rows * cols),
            [&] { bench.device->ops().SiluMul(gate_up.View(rows, 2 * cols), out.View(rows, cols), {}); });
}

void Rope(benchmark::State& state, const Bench& bench, int64_t rows) {
  const int head_dim = bench.shape.head_dim;
  const int64_t cols = int64_t{bench.shape.heads} * head_dim;
  const DeviceArray<float> q = bench.Random<float>(rows * cols);
  std::vector<float> frequency;
  for (int i = 0; i < head_dim / 2; ++i) {
    frequency.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(head_dim)));
  }
  const SequenceRows sequence{0, rows, 0, {}};
  bench.Run(state, 0, 0, 8.0 * static_cast<double>(rows * cols), [&] {
    bench.device->ops().Rope(q.View(rows, cols), head_dim, {frequency}, absl::MakeConstSpan(&sequence, 1),
                             {});
  });
}

// A step's choices: `top_p` below 1 also looks for the last token that is kept.
void SampleRows(benchmark::State& state, const Bench& bench, int64_t rows, int64_t vocab, double temperature,
                double top_p) {
  const DeviceArray<float> logits = bench.Random<float>(rows * vocab);
  const DeviceArray<int32_t> tokens(*bench.device, std::vector<int32_t>(rows));
  std::vector<RowSampling> draws(rows, {.temperature = temperature, .top_p = top_p});
  for (int64_t i = 0; i < rows; ++i) {
    draws[i].uniform = (static_cast<double>(i) + 0.5) / static_cast<double>(rows);
  }
  bench.Run(state, 0, 0, 4.0 * static_cast<double>(rows * vocab),
            [&] { bench.device->ops().SampleRows(logits.View(rows, vocab), draws, tokens.data(), {}); });
}

// An aludel frame's latents in 8 bits each, packed and read.
void Latents(benchmark::State& state, const Bench& bench, int64_t tokens, int64_t rank, bool pack) {
  const DeviceArray<float> z = bench.Random<float>(tokens * rank);
  const DeviceArray<uint8_t> bytes(*bench.device, std::vector<uint8_t>(tokens * rank));
  std::vector<LatentPlane> planes(rank);
  for (int64_t i = 0; i < rank; ++i) planes[i] = {static_cast<uint32_t>(i * tokens), 0, 8, 8};
  Ops& ops = bench.device->ops();
  bench.Run(state, 0, 0, 5.0 * static_cast<double>(tokens * rank), [&] {
    if (pack) {
      ops.PackLatents(z.View(tokens, rank), 8.0f, planes, bytes.data(), {});
    } else {
      ops.UnpackLatents(bytes.data(), planes, 0, 0.125f, z.View(tokens, rank), {});
    }
  });
}

// K or V of a layer in 4 bits.
void Tokens(benchmark::State& state, const Bench& bench, int64_t tokens, bool quantize) {
  const int64_t width = int64_t{bench.shape.kv_heads} * bench.shape.head_dim;
  const DeviceArray<float> x = bench.Random<float>(tokens * width);
  const DeviceArray<uint8_t> scales(*bench.device, std::vector<uint8_t>(2 * tokens));
  const DeviceArray<uint8_t> codes(*bench.device, std::vector<uint8_t>(tokens * width / 2));
  Ops& ops = bench.device->ops();
  bench.Run(state, 0, 0, 4.5 * static_cast<double>(tokens * width), [&] {
    if (quantize) {
      ops.QuantizeTokens(x.View(tokens, width), 4, scales.data(), codes.data(), {});
    } else {
      ops.DequantizeTokens(scales.data(), codes.data(), 4, x.View(tokens, width), {});
    }
  });
}

void Register(const Bench& bench) {
  const auto add = [&bench](const std::string& name, auto function, auto... arguments) {
    benchmark::RegisterBenchmark(name.c_str(), [&bench, function, arguments...](benchmark::State& state) {
      function(state, bench, arguments...);
    })->UseRealTime();
  };
  const Shape& shape = bench.shape;
  const bool card = bench.device->name() != "cpu";
  const bool fp8 = bench.device->ops().KeepsFp8();
  const int64_t kv = int64_t{2} * shape.kv_heads * shape.head_dim;
  const std::vector<int64_t> row_counts =
      card ? std::vector<int64_t>{1, 16, 32, 64, 1024, 4096} : std::vector<int64_t>{1, 8, 64, 512, 1024};
  struct Matrix {
    int64_t out, in;
  };
  for (const Matrix& w : {Matrix{kv, shape.hidden}, Matrix{shape.hidden, shape.hidden},
                          Matrix{2 * int64_t{shape.ffn}, shape.hidden}, Matrix{shape.hidden, shape.ffn}}) {
    for (const int64_t rows : row_counts) {
      const std::string sizes = absl::StrCat("/rows:", rows, "/out:", w.out, "/in:", w.in);
      add("Gemm" + sizes, Gemm, rows, w.out, w.in, WeightFormat::kBf16);
      if (fp8) add("GemmFp8" + sizes, Gemm, rows, w.out, w.in, WeightFormat::kFp8);
    }
  }
  struct Work {
    int64_t sequences, rows, context;
  };
  const Work on_cpu[] = {{1, 512, 0}, {1, 1024, 0}, {1, 512, 4096}, {1, 1, 512}, {1, 1, 8192}, {8, 1, 1024}};
  const Work on_card[] = {{1, 4096, 0}, {1, 8192, 0}, {1, 2048, 6144},
                          {1, 1, 512},  {1, 1, 8192}, {32, 1, 4096}};
  for (const Work& work : card ? on_card : on_cpu) {
    add(absl::StrCat("Attention/sequences:", work.sequences, "/rows:", work.rows, "/context:", work.context),
        Attention, work.sequences, work.rows, work.context);
  }
  for (const int64_t rows : card ? std::vector<int64_t>{1, 4096} : std::vector<int64_t>{1, 8, 512}) {
    add(absl::StrCat("RmsNorm/", rows), RmsNorm, rows);
    add(absl::StrCat("SiluMul/", rows), SiluMul, rows);
    add(absl::StrCat("Rope/", rows), Rope, rows);
  }
  constexpr int64_t kRank = 1024;
  for (const int64_t rows : {256, 1024}) {
    add(absl::StrCat("PackLatents/", rows), Latents, rows, kRank, true);
    add(absl::StrCat("UnpackLatents/", rows), Latents, rows, kRank, false);
    add(absl::StrCat("QuantizeTokens/", rows), Tokens, rows, true);
    add(absl::StrCat("DequantizeTokens/", rows), Tokens, rows, false);
  }
  for (const int64_t rows : {1, 32}) {
    const std::string name = absl::StrCat("SampleRows/rows:", rows, "/vocab:", kVocab);
    add(name + "/greedy", SampleRows, rows, kVocab, 0.0, 1.0);
    add(name + "/temperature", SampleRows, rows, kVocab, 0.3, 1.0);
    add(name + "/top_p", SampleRows, rows, kVocab, 0.3, 0.95);
  }
}

int Main(int argc, char** argv) {
  BenchFlags flags = ParseBenchFlags(&argc, argv);
  const Bench bench(&flags);
  benchmark::Initialize(&argc, argv);
  if (!flags.others.empty()) {
    std::fprintf(stderr,
                 "usage: ops_bench [--device=NAME] [--threads=N] [--cores=LIST] [--instructions=NAME] "
                 "[--shape=1b|8b] [--batch-gemm=on|off] [--time-algorithms=on|off] [--benchmark_...]\n");
    return 1;
  }
  Register(bench);
  const auto add = [](const std::string& name, const Bound& bound) {
    benchmark::AddCustomContext(name, absl::StrCat(bound.rate));
    benchmark::AddCustomContext(name + "_spread", absl::StrCat(bound.spread));
  };
  add("bandwidth_gb_s", TimedBandwidth(*bench.device, bench.threads));
  add("gemm_gflop_s", TimedPeakGemm(*bench.device, 1024, 2048, 2048, bench.threads));
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) { return aludel::Main(argc, argv); }
