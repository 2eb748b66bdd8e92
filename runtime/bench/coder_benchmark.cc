#include "runtime/bench/coder_benchmark.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/latents.h"
#include "kernels/tensor.h"
#include "runtime/calibrate/aludel/fit_decays.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/lossless/split_planes.h"
#include "runtime/evaluate/score.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBits = 8;
constexpr int kEmbeddedPlanes = 4;

using Clock = std::chrono::steady_clock;
using Bytes = absl::Span<const uint8_t>;

// One coder: bytes in `in`, what they become, and what becomes of that.
struct Contestant {
  std::string name;
  Bytes in;
  std::function<size_t(absl::Span<uint8_t> out)> encode;
  std::function<absl::Status(Bytes coded, absl::Span<uint8_t> back)> decode;
  std::vector<uint8_t> coded, back;
  size_t coded_bytes = 0;
  std::vector<double> encode_seconds, decode_seconds;

  // Once to warm the caches that others have had, and once.
  absl::Status Turn() {
    ALUDEL_RETURN_IF_ERROR(Pass());
    encode_seconds.pop_back();
    decode_seconds.pop_back();
    return Pass();
  }

  absl::Status Pass() {
    back.assign(in.size(), 0xee);
    const Clock::time_point start = Clock::now();
    coded_bytes = encode(absl::MakeSpan(coded));
    const Clock::time_point between = Clock::now();
    const absl::Status status = decode(absl::MakeConstSpan(coded).first(coded_bytes), absl::MakeSpan(back));
    const Clock::time_point end = Clock::now();
    if (!status.ok()) return status;
    if (!std::equal(in.begin(), in.end(), back.begin())) {
      return absl::InternalError(absl::StrCat(name, " gives back other bytes than it got"));
    }
    encode_seconds.push_back(std::chrono::duration<double>(between - start).count());
    decode_seconds.push_back(std::chrono::duration<double>(end - between).count());
    return absl::OkStatus();
  }
};

std::vector<float> Latents(const CoderBenchmarkOptions& options) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> z(static_cast<size_t>(options.tokens * options.rank));
  for (size_t i = 0; i < z.size(); ++i) {
    const double place = static_cast<double>(i % options.rank) / static_cast<double>(options.rank);
    z[i] = static_cast<float>(options.deviation * std::exp2(-6 * place)) * normal(random);
  }
  return z;
}

// Bits a symbol, with one table a latent made of its own symbols.
double Entropy(Bytes planes, int64_t tokens) {
  double bits = 0;
  for (size_t begin = 0; begin < planes.size(); begin += tokens) {
    std::array<double, 256> counts = {};
    for (const uint8_t symbol : planes.subspan(begin, tokens)) ++counts[symbol];
    for (const double count : counts) {
      if (count > 0) bits -= count * std::log2(count / static_cast<double>(tokens));
    }
  }
  return bits / static_cast<double>(planes.size());
}

}  // namespace

absl::StatusOr<CoderBenchmark> BenchmarkCoders(
    const CoderBenchmarkOptions& options, const std::function<bool(int64_t done, int64_t total)>& progress) {
  const int64_t tokens = options.tokens;
  LatentGrid grid{1.0f, std::vector<int>(options.rank, kBits)};
  const std::vector<float> z = Latents(options);
  SymbolCounts counts(grid);
  counts.Add(z.data(), tokens, options.rank);
  grid.decays = counts.FitDecays();
  std::vector<uint8_t> planes(z.size());
  const std::vector<LatentPlane> layout = PlanesOf(grid.bits, LatentPacking::kRans, tokens);
  for (int64_t i = 0; i < options.rank; ++i) {
    WriteLatent(z.data() + i, options.rank, tokens, 1.0f, layout[i], planes.data());
  }
  std::vector<Bf16> numbers;
  for (const float value : z) numbers.push_back(ToBf16(value));
  const Bytes number_bytes(reinterpret_cast<const uint8_t*>(numbers.data()), numbers.size() * sizeof(Bf16));

  const auto open = [&](LatentPacking packing, const LatentCoder* coder) {
    return [&grid, tokens, packing, coder, opened = std::vector<uint8_t>()](
               Bytes coded, absl::Span<uint8_t> back) mutable -> absl::Status {
      ALUDEL_ASSIGN_OR_RETURN(const OpenedPlanes found,
                              OpenPlanes(coded, grid, packing, coder, tokens, &opened));
      std::copy(found.bytes.begin(), found.bytes.end(), back.begin());
      return absl::OkStatus();
    };
  };
  const RansCoder rans(grid);
  grid.planes = kEmbeddedPlanes;
  const EmbeddedCoder embedded(grid, kEmbeddedPlanes);
  std::vector<Contestant> contestants(5);
  contestants[0] = {"copy", planes,
                    [&](absl::Span<uint8_t> out) {
                      std::memcpy(out.data(), planes.data(), planes.size());
                      return planes.size();
                    },
                    [](Bytes coded, absl::Span<uint8_t> back) {
                      std::memcpy(back.data(), coded.data(), coded.size());
                      return absl::OkStatus();
                    }};
  contestants[1] = {"rans", planes, [&](absl::Span<uint8_t> out) { return rans.Encode(planes, tokens, out); },
                    open(LatentPacking::kRans, &rans)};
  contestants[2] = {"deflate", planes, [&](absl::Span<uint8_t> out) { return DeflatePlanes(planes, out); },
                    open(LatentPacking::kDeflate, nullptr)};
  contestants[3] = {"lossless", number_bytes,
                    [&](absl::Span<uint8_t> out) { return CodeSplit(numbers, out); },
                    [&](Bytes coded, absl::Span<uint8_t> back) {
                      return DecodeSplit(&coded, {reinterpret_cast<Bf16*>(back.data()), numbers.size()});
                    }};
  contestants[4] = {"embedded", planes,
                    [&](absl::Span<uint8_t> out) { return embedded.Encode(planes, tokens, out); },
                    open(LatentPacking::kEmbedded, &embedded)};
  for (Contestant& contestant : contestants) {
    contestant.coded.resize(MaxSplitBytes(contestant.in.size()) +
                            MaxPackedBytes(grid, LatentPacking::kEmbedded, tokens));
  }

  for (int turn = 0; turn < options.repeats; ++turn) {
    if (!progress(turn, options.repeats)) return absl::CancelledError("the benchmark was interrupted");
    for (Contestant& contestant : contestants) ALUDEL_RETURN_IF_ERROR(contestant.Turn());
  }
  progress(options.repeats, options.repeats);
  CoderBenchmark result{.latent_entropy = Entropy(planes, tokens)};
  for (Contestant& contestant : contestants) {
    result.coders.push_back({contestant.name, contestant.in.size(), contestant.coded_bytes,
                             Percentile(std::move(contestant.encode_seconds), 0.5),
                             Percentile(std::move(contestant.decode_seconds), 0.5)});
  }
  return result;
}

}  // namespace aludel
