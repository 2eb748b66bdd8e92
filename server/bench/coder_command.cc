#include <cstdio>

#include "absl/strings/str_format.h"
#include "runtime/bench/coder_benchmark.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench coder measures the entropy coders of latents and of lossless frames on one thread of this machine,
beside a copy of the same bytes, all in one run. MB/s are of the bytes that go in: a byte for each symbol of a latent,
two for each bf16 number.

  aludel-bench coder --tokens 256 --rank 256)";

constexpr double kMega = 1e6;

void Print(const CoderBenchmark& result) {
  absl::PrintF("symbols of latents have %.3f bits with an ideal table for each latent\n\n",
               result.latent_entropy);
  absl::PrintF("| coder | bits of 8 | encode MB/s | decode MB/s |\n|---|---|---|---|\n");
  for (const CoderTimes& coder : result.coders) {
    const auto bytes = static_cast<double>(coder.bytes);
    absl::PrintF("| %s | %.3f | %.0f | %.0f |\n", coder.coder, 8 * static_cast<double>(coder.coded) / bytes,
                 bytes / kMega / coder.encode_seconds, bytes / kMega / coder.decode_seconds);
  }
}

}  // namespace

absl::Status CoderCommand(int argc, char** argv) {
  CoderBenchmarkOptions options;
  int64_t repeats = options.repeats;
  FlagSet flags(kUsage);
  flags.Add("tokens", "N", &options.tokens, "of a frame");
  flags.Add("rank", "N", &options.rank, "latents of a token");
  flags.Add("deviation", "X", &options.deviation,
            "of the strongest latent, in steps; the weakest has a 64th");
  flags.Add("repeats", "N", &repeats, "medians are over so many passes");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (repeats < 1 || options.tokens < 1 || options.rank < 1 || options.deviation <= 0) {
    return absl::InvalidArgumentError("--repeats, --tokens, --rank and --deviation want more than 0");
  }
  options.repeats = static_cast<int>(repeats);
  StopOnSignals();
  ProgressBar bar;
  ALUDEL_ASSIGN_OR_RETURN(const CoderBenchmark result,
                          BenchmarkCoders(options, [&](int64_t done, int64_t total) {
                            bar.Update("passes", done, total);
                            return !StopAsked();
                          }));
  Print(result);
  return absl::OkStatus();
}

}  // namespace aludel
