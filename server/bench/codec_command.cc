#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "runtime/bench/codec_benchmark.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/machine_flags.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench codec measures what handoff formats cost to encode and to reconstruct, beside the consumer's own
prefill of the same prompt and beside the machine's matrix product, all in one run.

  aludel-bench codec --producer deploy/demo/base --consumer deploy/demo/chat --codec deploy/demo/codec \
      --formats aludel-p2,scd --tokens 512)";

constexpr double kGiga = 1e9;

// A figure over the rate of the matrix product; formats without products have none.
std::string OfGemm(double flops, double seconds, double gemm_flops) {
  if (flops <= 0 || seconds <= 0) return "-";
  return absl::StrFormat("%.0f %%", 100 * flops / seconds / gemm_flops);
}

// None where a difference of times is lost in noise.
std::string Rate(double count, double seconds) {
  return seconds > 0 ? absl::StrFormat("%.0f", count / seconds) : "-";
}

void Print(const CodecBenchmark& result, int64_t tokens) {
  const auto count = static_cast<double>(tokens);
  absl::PrintF("matrix product: %.1f GFLOP/s; prefill of %d tokens: %.2f ms, %.0f tokens/s\n\n",
               result.gemm_flops / kGiga, tokens, 1e3 * result.prefill_seconds,
               count / result.prefill_seconds);
  absl::PrintF(
      "| format | bytes/token | encode tok/s | of GEMM | reconstruct tok/s | cache GB/s | of GEMM | encode + "
      "reconstruct, of prefill | spread | recomputed, of prefill "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const CodecTimes& format : result.formats) {
    absl::PrintF("| %s | %.1f | %s | %s | %.0f | %.2f | %s | %.1f %% | %s | %.1f %% |\n", format.format,
                 format.bytes_per_token, Rate(count, format.encode_seconds),
                 OfGemm(format.encode_flops, format.encode_seconds, result.gemm_flops),
                 count / format.reconstruct_seconds,
                 static_cast<double>(result.raw_bytes) / kGiga / format.reconstruct_seconds,
                 OfGemm(format.reconstruct_flops, format.reconstruct_seconds, result.gemm_flops),
                 100 * (format.encode_seconds + format.reconstruct_seconds) / result.prefill_seconds,
                 format.spread.has_value() ? absl::StrFormat("%.1f %%", 100 * *format.spread) : "-",
                 100 * format.recompute_seconds / result.prefill_seconds);
  }
}

}  // namespace

absl::Status CodecCommand(int argc, char** argv) {
  CodecBenchmarkOptions options;
  std::string formats = "raw";
  int64_t repeats = options.repeats;
  MachineFlags machine;
  FlagSet flags(kUsage);
  flags.Add("producer", "DIR", &options.producer, "model of the prefill side: its directory");
  flags.Add("consumer", "DIR", &options.consumer,
            "model of the decode side, BASE+ADAPTER with a LoRA adapter");
  flags.Add("codec", "DIR", &options.codec, "artifact directory");
  flags.Add("formats", "LIST", &formats, "comma-separated");
  flags.Add("tokens", "N", &options.tokens, "of the prompt");
  flags.Add("repeats", "N", &repeats, "medians are over so many passes");
  machine.AddCompute(&flags, options.compute, "arithmetic of both models");
  machine.AddDevice(&flags);
  machine.AddThreads(&flags);
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (options.producer.empty() || options.consumer.empty()) {
    return absl::InvalidArgumentError("--producer and --consumer are needed (see --help)");
  }
  if (repeats < 1) return absl::InvalidArgumentError("--repeats wants at least 1");
  options.formats = absl::StrSplit(formats, ',', absl::SkipEmpty());
  options.repeats = static_cast<int>(repeats);
  ALUDEL_ASSIGN_OR_RETURN(options.compute, machine.Compute());
  ALUDEL_ASSIGN_OR_RETURN(const auto device, machine.Open());
  StopOnSignals();
  ProgressBar bar;
  ALUDEL_ASSIGN_OR_RETURN(const CodecBenchmark result,
                          BenchmarkCodecs(options, device.get(), [&](int64_t done, int64_t total) {
                            bar.Update("passes", done, total);
                            return !StopAsked();
                          }));
  Print(result, options.tokens);
  return absl::OkStatus();
}

}  // namespace aludel
