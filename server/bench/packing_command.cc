#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "runtime/bench/packing_benchmark.h"
#include "runtime/bench/plane_benchmark.h"
#include "runtime/codec/video/hevc.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/machine_flags.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench packing codes the latents that a format makes of prompts in every packing: bytes a token beside the entropy
of the same symbols, what coding takes on one thread, and the rate of a link below which it pays.

  aludel-bench packing --producer deploy/demo/base --consumer deploy/demo/chat --codec deploy/demo/codec \
      --format aludel-p0 --data deploy/demo/questions.jsonl --prompts 32

With --int8-planes it codes the producer's cache itself instead, as int8 in the layout of KVFetcher (arXiv 2602.09725): a token a
picture, three neighboring layers its planes, heads tiled in every way.)";

constexpr double kMega = 1e6;

std::string Rate(double bits_per_second) {
  if (bits_per_second == 0) return "never";
  return std::isinf(bits_per_second) ? "always" : absl::StrFormat("%.1f", bits_per_second / kMega);
}

void Print(const PackingBenchmark& result) {
  absl::PrintF(
      "%d tokens in %d frames, %.1f symbols a token; one ideal table a latent: %.2f bytes a token\n\n",
      result.tokens, result.frames, result.symbols_per_token, result.entropy_bytes);
  absl::PrintF(
      "| packing | bytes/token | over entropy | encode MB/s | decode MB/s | beats fixed below, Mb/s | beats "
      "deflate below, "
      "Mb/s | beats rans below, Mb/s |\n|---|---|---|---|---|---|---|---|\n");
  const double mega_symbols = result.symbols_per_token / kMega;
  for (const PackingTimes& packing : result.packings) {
    absl::PrintF("| %s | %.2f | %+.1f %% |", packing.packing, packing.bytes_per_token,
                 100 * (packing.bytes_per_token / result.entropy_bytes - 1));
    for (const double seconds : {packing.encode_seconds, packing.decode_seconds}) {
      absl::PrintF(seconds > 0 ? " %.1f |" : " - |", mega_symbols / seconds);
    }
    for (size_t other = 0; other < 3; ++other) {
      const PackingTimes& plain = result.packings[other];
      absl::PrintF(" %s |", plain.packing == packing.packing ? "-" : Rate(WinsBelow(packing, plain)));
    }
    absl::PrintF("\n");
  }
  for (const absl::Status& status : {LoadHevcEncoder(), LoadHevcDecoder()}) {
    if (!status.ok()) absl::PrintF("\nwithout video: %s\n", status.message());
  }
}

void Print(const PlaneBenchmark& result) {
  const auto values = static_cast<double>(result.values_per_token);
  absl::PrintF(
      "%d tokens of %d values; one ideal table for each layer's K and V: %.2f bits a value; scales: %.0f "
      "bytes a "
      "token more\n\n",
      result.tokens, result.values_per_token, result.entropy_bits, result.scale_bytes);
  absl::PrintF(
      "| rows of a head | heads in a row | bits/value | bytes/token | encode MB/s | decode MB/s |\n");
  absl::PrintF("|---|---|---|---|---|---|\n");
  for (const TilingTimes& times : result.tilings) {
    absl::PrintF("| %d | %d | %.2f | %.0f | %.2f | %.2f |\n", times.tiling.head_rows,
                 times.tiling.grid_columns, times.bits_per_value,
                 times.bits_per_value * values / 8 + result.scale_bytes,
                 values / kMega / times.encode_seconds, values / kMega / times.decode_seconds);
  }
}

}  // namespace

absl::Status PackingCommand(int argc, char** argv) {
  PackingBenchmarkOptions options;
  options.model.prompts = 32;
  std::string consumer;
  int64_t repeats = options.repeats;
  bool int8_planes = false;
  MachineFlags machine;
  FlagSet flags(kUsage);
  flags.Add("producer", "DIR", &options.model.producer, "model of the prefill side: its directory");
  flags.Add("consumer", "DIR", &consumer, "model of the decode side, whose template renders prompts");
  flags.Add("codec", "DIR", &options.codec, "artifact directory");
  flags.Add("format", "NAME", &options.format, "an aludel format of the artifact");
  flags.Add("data", "FILE", &options.model.data, "questions, as aludel-calibrate takes them");
  flags.Add("prompts", "N", &options.model.prompts, "of them; 0: all");
  flags.Add("repeats", "N", &repeats, "medians are over so many passes");
  flags.Add("int8-planes", &int8_planes,
            "of the cache, in KVFetcher's layout; goes without --codec and --format");
  machine.AddCompute(&flags, options.model.compute, "arithmetic of the model");
  machine.AddDevice(&flags);
  machine.AddThreads(&flags);
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  const bool codec_named = !options.codec.empty() && !options.format.empty();
  if (options.model.producer.empty() || consumer.empty() || options.model.data.empty() ||
      (!codec_named && !int8_planes)) {
    return absl::InvalidArgumentError(
        "--producer, --consumer, --codec, --format and --data are needed (see --help)");
  }
  if (repeats < 1 || options.model.prompts < 0) {
    return absl::InvalidArgumentError("--repeats wants at least 1, --prompts at least 0");
  }
  options.model.consumers = {consumer};
  options.repeats = static_cast<int>(repeats);
  ALUDEL_ASSIGN_OR_RETURN(options.model.compute, machine.Compute());
  ALUDEL_ASSIGN_OR_RETURN(const auto device, machine.Open());
  StopOnSignals();
  ProgressBar bar;
  const auto progress = [&](int64_t done, int64_t total) {
    bar.Update("passes", done, total);
    return !StopAsked();
  };
  if (int8_planes) {
    ALUDEL_ASSIGN_OR_RETURN(const PlaneBenchmark planes,
                            BenchmarkPlanes(options.model, device.get(), progress));
    Print(planes);
    return absl::OkStatus();
  }
  ALUDEL_ASSIGN_OR_RETURN(const PackingBenchmark result, BenchmarkPackings(options, device.get(), progress));
  Print(result);
  return absl::OkStatus();
}

}  // namespace aludel
