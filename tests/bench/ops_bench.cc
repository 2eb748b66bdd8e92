// The operations of a forward pass at a 1B model's sizes, on two CPU threads, against what the machine allows
// in the same run:
//
//   build/release/bin/ops_bench [--benchmark_filter=...]
//
// `of_gemm`: oneDNN's rate on the same matrices. `of_bandwidth`: bytes that must be read and written
// (weights, pages, activations) over what as many threads read; what lies in the caches may go above 1.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/bench/bounds.h"

namespace aludel {
namespace {

constexpr int kThreads = 2;
constexpr int kHidden = 2048, kFfn = 8192, kHeads = 32, kKvHeads = 8, kHeadDim = 64;
constexpr int kBlockTokens = 16;

Device& Cpu() {
  static const auto* const device =
      new std::unique_ptr<Device>(OpenDevice({.name = "cpu", .threads = kThreads}).value());
  return **device;
}

std::vector<float> Random(size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<Bf16> RandomBf16(size_t count) {
  std::vector<Bf16> narrow;
  for (const float value : Random(count)) narrow.push_back(ToBf16(value));
  return narrow;
}

void ReportBytes(benchmark::State& state, double bytes) {
  const double done = bytes * static_cast<double>(state.iterations());
  state.SetBytesProcessed(static_cast<int64_t>(done));
  state.counters["of_bandwidth"] =
      benchmark::Counter(done * 1e-9 / ReadBandwidth(kThreads), benchmark::Counter::kIsRate);
}

// Weights of several copies in turn: a model's do not wait in the caches.
void Gemm(benchmark::State& state) {
  const int64_t rows = state.range(0), out = state.range(1), in = state.range(2);
  constexpr int64_t kBytes = 256 << 20;
  const auto copies = static_cast<size_t>(std::max<int64_t>(1, kBytes / (2 * out * in)));
  std::vector<Bf16> w = RandomBf16(out * in);
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  for (size_t i = 0; i < copies; ++i) {
    packed.push_back(Cpu().ops().Pack(TensorView::Of(w.data(), out, in), WeightFormat::kBf16).value());
  }
  std::vector<Bf16> a = RandomBf16(rows * in);
  std::vector<float> result(rows * out);
  const double library = LibraryGemm(rows, out, in, kThreads);
  size_t next = 0;
  for (auto _ : state) {
    Cpu().ops().Gemm(TensorView::Of(a.data(), rows, in), *packed[next++ % copies], nullptr, false,
                     TensorView::Of(result.data(), rows, out), {});
  }
  const double gflop = 2e-9 * static_cast<double>(rows) * static_cast<double>(out * in) *
                       static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(gflop, benchmark::Counter::kIsRate);
  state.counters["of_gemm"] = benchmark::Counter(gflop / library, benchmark::Counter::kIsRate);
  ReportBytes(state, 2.0 * static_cast<double>(out * in));
}
BENCHMARK(Gemm)
    ->ArgNames({"rows", "out", "in"})
    ->ArgsProduct({{1, 8, 64, 512, 1024}, {2 * kKvHeads * kHeadDim, kHidden, 2 * kFfn}, {kHidden}})
    ->ArgsProduct({{1, 8, 64, 512, 1024}, {kHidden}, {kFfn}})
    ->UseRealTime();

// `rows` new tokens of `sequences` sequences behind `context` others, over bf16 pages.
void Attention(benchmark::State& state) {
  const int64_t sequences = state.range(0), rows = state.range(1), context = state.range(2);
  const int64_t blocks = (context + rows + kBlockTokens - 1) / kBlockTokens;
  std::vector<Bf16> k = RandomBf16(sequences * blocks * kBlockTokens * kKvHeads * kHeadDim);
  std::vector<Bf16> v = k;
  std::vector<int32_t> ids(sequences * blocks);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
  std::vector<SequenceRows> batch;
  for (int64_t s = 0; s < sequences; ++s) {
    batch.push_back({s * rows, rows, context, absl::MakeConstSpan(ids).subspan(s * blocks, blocks)});
  }
  std::vector<float> q = Random(sequences * rows * kHeads * kHeadDim);
  std::vector<Bf16> out(q.size());
  const PagedKv kv{k.data(), v.data(), DType::kBf16, kBlockTokens, kKvHeads, kHeadDim};
  const AttentionParams params{kHeads, kKvHeads, kHeadDim, 1.0f / std::sqrt(float{kHeadDim})};
  for (auto _ : state) {
    Cpu().ops().Attention(TensorView::Of(q.data(), sequences * rows, kHeads * kHeadDim), params, batch, kv,
                          TensorView::Of(out.data(), sequences * rows, kHeads * kHeadDim), {});
  }
  const double keys = static_cast<double>(context) + (static_cast<double>(rows) + 1) / 2;
  const double gflop = 4e-9 * static_cast<double>(sequences * rows) * keys * kHeads * kHeadDim *
                       static_cast<double>(state.iterations());
  state.counters["GFLOP/s"] = benchmark::Counter(gflop, benchmark::Counter::kIsRate);
  state.counters["of_gemm"] =
      benchmark::Counter(gflop / LibraryGemm(512, kHidden, kHidden, kThreads), benchmark::Counter::kIsRate);
  ReportBytes(state, 2.0 * 2.0 * static_cast<double>(k.size()));
}
BENCHMARK(Attention)
    ->ArgNames({"sequences", "rows", "context"})
    ->Args({1, 512, 0})
    ->Args({1, 1024, 0})
    ->Args({1, 512, 4096})
    ->Args({1, 1, 512})
    ->Args({1, 1, 8192})
    ->Args({8, 1, 1024})
    ->UseRealTime();

void RmsNorm(benchmark::State& state) {
  const int64_t rows = state.range(0);
  std::vector<float> x = Random(rows * kHidden), weight = Random(kHidden);
  std::vector<Bf16> out(x.size());
  for (auto _ : state) {
    Cpu().ops().RmsNorm(TensorView::Of(x.data(), rows, kHidden), weight.data(), 1e-5f,
                        TensorView::Of(out.data(), rows, kHidden), {});
  }
  ReportBytes(state, 6.0 * static_cast<double>(x.size()));
}
BENCHMARK(RmsNorm)->Arg(1)->Arg(8)->Arg(512)->UseRealTime();

void SiluMul(benchmark::State& state) {
  const int64_t rows = state.range(0);
  std::vector<Bf16> gate_up = RandomBf16(rows * 2 * kFfn), out(rows * kFfn);
  for (auto _ : state) {
    Cpu().ops().SiluMul(TensorView::Of(gate_up.data(), rows, 2 * kFfn),
                        TensorView::Of(out.data(), rows, kFfn), {});
  }
  ReportBytes(state, 6.0 * static_cast<double>(out.size()));
}
BENCHMARK(SiluMul)->Arg(1)->Arg(8)->Arg(512)->UseRealTime();

void Rope(benchmark::State& state) {
  const int64_t rows = state.range(0);
  std::vector<float> q = Random(rows * kHeads * kHeadDim), frequency;
  for (int i = 0; i < kHeadDim / 2; ++i) frequency.push_back(std::pow(10000.0f, -2.0f * i / kHeadDim));
  const SequenceRows sequence{0, rows, 0, {}};
  for (auto _ : state) {
    Cpu().ops().Rope(TensorView::Of(q.data(), rows, kHeads * kHeadDim), kHeadDim, {frequency},
                     absl::MakeConstSpan(&sequence, 1), {});
  }
  ReportBytes(state, 8.0 * static_cast<double>(q.size()));
}
BENCHMARK(Rope)->Arg(1)->Arg(8)->Arg(512)->UseRealTime();

}  // namespace
}  // namespace aludel
