#include "tests/bench/bounds.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "dnnl.hpp"
#include "kernels/check.h"
#include "kernels/cpu/onednn_loader.h"
#include "kernels/ops.h"
#include "omp.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// The best of `runs` calls: what the machine can do, not what its neighbors left of it.
template <typename Call>
double Best(int runs, Call call) {
  double best = 1e300;
  for (int i = 0; i < runs; ++i) {
    const Clock::time_point begin = Clock::now();
    call();
    best = std::min(best, Seconds(begin));
  }
  return best;
}

// The bests of two halves of so many calls.
template <typename Call>
std::array<double, 2> BestOfHalves(int runs, Call call) {
  const int half = (runs + 1) / 2;
  const double first = Best(half, call);
  return {first, Best(half, call)};
}

// Of so much work in each of two timings.
Bound BoundOf(double work, const std::array<double, 2>& seconds) {
  const auto [less, more] = std::minmax(seconds[0], seconds[1]);
  return {work / less, 2 * (more - less) / (more + less)};
}

// The calling thread to the `index`th core that this process may use, so that readers do not share one.
void Pin(int index) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    return;
  }
}

typedef uint64_t Vector __attribute__((vector_size(64)));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
uint64_t
Read(const char* data, size_t bytes) {
  const auto* from = reinterpret_cast<const Vector*>(data);
  Vector sums[4] = {};
  for (size_t i = 0; i + 4 <= bytes / sizeof(Vector); i += 4) {
    for (int lane = 0; lane < 4; ++lane) sums[lane] ^= from[i + lane];
  }
  const Vector all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return all[0] ^ all[1] ^ all[2] ^ all[3] ^ all[4] ^ all[5] ^ all[6] ^ all[7];
}

// Of a `launch` that does so much work, among `count` that follow each other on the device.
template <typename Launch>
Bound BoundOfLaunch(Device& device, double work, int count, Launch launch) {
  const auto burst = [&] {
    for (int i = 0; i < count; ++i) launch();
    ALUDEL_CHECK(device.Synchronize({}).ok());
  };
  burst();
  return BoundOf(work * count, BestOfHalves(6, burst));
}

Bound SquareProduct(Device& device, int64_t size) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<Bf16> values(static_cast<size_t>(size * size));
  for (Bf16& value : values) value = ToBf16(uniform(random));
  const size_t bytes = values.size() * sizeof(Bf16);
  const auto a = device.Allocate(bytes);
  const auto out = device.Allocate(bytes);
  const auto w = device.ops().Pack(TensorView::Of(values.data(), size, size), WeightFormat::kBf16);
  if (!a.ok() || !out.ok() || !w.ok()) return {};
  device.CopyToDevice(a->data(), values.data(), bytes, {});
  const double flops =
      2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  return BoundOfLaunch(device, flops * 1e-9, 20, [&] {
    device.ops().Gemm(TensorView::Of(a->as<Bf16>(), size, size), **w, nullptr, /*accumulate=*/false,
                      TensorView::Of(out->as<Bf16>(), size, size), {});
  });
}

}  // namespace

Bound ReadBandwidth(int threads) {
  static std::map<int, Bound> known;
  if (const auto found = known.find(threads); found != known.end()) return found->second;
  constexpr size_t kBytes = size_t{1} << 30;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  ::madvise(memory, kBytes, MADV_HUGEPAGE);
  char* const data = static_cast<char*>(memory);
  for (size_t i = 0; i < kBytes; i += 4096) data[i] = static_cast<char>(i >> 12);
  std::vector<uint64_t> results(threads);
  const std::array<double, 2> seconds = BestOfHalves(8, [&] {
    std::vector<std::thread> readers;
    const size_t part = kBytes / threads / 256 * 256;
    for (int t = 0; t < threads; ++t) {
      readers.emplace_back([&, t] {
        Pin(t);
        results[t] = Read(data + t * part, part);
      });
    }
    for (std::thread& reader : readers) reader.join();
  });
  volatile uint64_t sink = 0;
  for (const uint64_t result : results) sink = sink ^ result;
  ::munmap(memory, kBytes);
  return known[threads] = BoundOf(static_cast<double>(kBytes) * 1e-9, seconds);
}

Bound LibraryGemm(int64_t rows, int64_t out, int64_t in, int threads) {
  using dnnl::memory;
  if (!cpu::LoadOneDnn().ok()) return {};
  static std::map<std::tuple<int64_t, int64_t, int64_t, int>, Bound> known;
  const std::tuple key{rows, out, in, threads};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  omp_set_num_threads(threads);
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  const bool narrow = isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  const auto type = narrow ? memory::data_type::bf16 : memory::data_type::f32;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc a_desc({rows, in}, type, memory::format_tag::ab);
  const memory::desc out_desc({rows, out}, memory::data_type::f32, memory::format_tag::ab);
  const memory::desc any({in, out}, type, memory::format_tag::any);
  const dnnl::matmul::primitive_desc desc({a_desc, any, out_desc}, engine);
  const dnnl::matmul matmul(desc);
  const memory a(a_desc, engine), w(desc.weights_desc(), engine), result(out_desc, engine);
  // 1.0 in either type. Zeros would do, too, but some CPUs multiply them with less current.
  std::fill_n(static_cast<uint16_t*>(a.get_data_handle()), a_desc.get_size() / 2, uint16_t{0x3f80});
  std::fill_n(static_cast<uint16_t*>(w.get_data_handle()), desc.weights_desc().get_size() / 2,
              uint16_t{0x3f80});
  const auto run = [&] {
    matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, result}});
    stream.wait();
  };
  run();
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(out) * static_cast<double>(in);
  const int runs = static_cast<int>(std::clamp(5e10 / flops, 5.0, 50.0));
  return known[key] = BoundOf(flops * 1e-9, BestOfHalves(runs, run));
}

Bound TimedBandwidth(Device& device, int threads) {
  if (device.name() == "cpu") return ReadBandwidth(threads);
  static std::map<std::string, Bound> known;
  if (const auto found = known.find(device.name()); found != known.end()) return found->second;
  constexpr size_t kBytes = size_t{1} << 30;
  const auto from = device.Allocate(kBytes);
  const auto to = device.Allocate(kBytes);
  if (!from.ok() || !to.ok()) return {};
  return known[device.name()] = BoundOfLaunch(device, 2e-9 * static_cast<double>(kBytes), 20,
                                              [&] { device.Copy(to->data(), from->data(), kBytes, {}); });
}

Bound TimedPeakGemm(Device& device, int64_t rows, int64_t out, int64_t in, int threads) {
  if (device.name() == "cpu") return LibraryGemm(rows, out, in, threads);
  static std::map<std::string, Bound> known;
  if (const auto found = known.find(device.name()); found != known.end()) return found->second;
  const Bound small = SquareProduct(device, 4096), large = SquareProduct(device, 8192);
  return known[device.name()] = small.rate > large.rate ? small : large;
}

double Bandwidth(Device& device, int threads) { return TimedBandwidth(device, threads).rate; }

double PeakGemm(Device& device, int64_t rows, int64_t out, int64_t in, int threads) {
  return TimedPeakGemm(device, rows, out, in, threads).rate;
}

}  // namespace aludel
