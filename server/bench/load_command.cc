#include <cstdio>

#include "absl/strings/str_format.h"
#include "runtime/bench/load_benchmark.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/machine_flags.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench load measures how fast a model loads from a cold disk, against how fast the disk can be read, and
how much memory that takes. The files of DIR are dropped from the page cache first; one pass reads them with several
direct reads in flight, one takes as much memory as they need and gives it back, the last loads the model (reads,
hashes, packs).

  aludel-bench load /models/llama-8b)";

constexpr double kGigabyte = 1e9;

}  // namespace

absl::Status LoadCommand(int argc, char** argv) {
  std::vector<std::string> directories;
  MachineFlags machine;
  FlagSet flags(kUsage);
  flags.AddArguments("DIR", 1, &directories, "a model: its directory, or BASE+ADAPTER with a LoRA adapter");
  machine.AddDevice(&flags);
  machine.AddCompute(&flags, DType::kBf16, "what the weights are packed as");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (directories.empty()) return absl::InvalidArgumentError("a model directory is needed (see --help)");
  ALUDEL_ASSIGN_OR_RETURN(const DType compute, machine.Compute());
  ProgressBar bar;
  const auto progress = [&](const char* stage, int64_t done, int64_t total) {
    constexpr int64_t kMegabyte = 1'000'000;
    bar.Update(absl::StrFormat("%s, MB", stage), done / kMegabyte, total / kMegabyte);
  };
  ALUDEL_ASSIGN_OR_RETURN(const LoadBenchmark result, BenchmarkLoad(ModelPath::Parse(directories[0]),
                                                                    machine.device(), compute, progress));
  bar.Break();
  const auto bytes = static_cast<double>(result.bytes);
  absl::PrintF("%.3f GB of weights\n", bytes / kGigabyte);
  absl::PrintF("disk, cold:  %7.2f s  %.3f GB/s\n", result.disk_seconds,
               bytes / kGigabyte / result.disk_seconds);
  absl::PrintF("memory:      %7.2f s  %.3f GB/s from the kernel, on one thread\n", result.memory_seconds,
               bytes / kGigabyte / result.memory_seconds);
  absl::PrintF("load, cold:  %7.2f s  %.3f GB/s  (%.0f %% of the disk)\n", result.load_seconds,
               bytes / kGigabyte / result.load_seconds, 100 * result.disk_seconds / result.load_seconds);
  absl::PrintF("peak memory: %.3f GB, %+.1f %% of the weights\n",
               static_cast<double>(result.peak_rss_bytes) / kGigabyte,
               100 * (static_cast<double>(result.peak_rss_bytes) / bytes - 1));
  return absl::OkStatus();
}

}  // namespace aludel
