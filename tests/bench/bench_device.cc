#include "tests/bench/bench_device.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/core_list.h"
#include "kernels/open_device.h"

namespace aludel {
namespace {

[[noreturn]] void End(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

bool TakeSwitch(BenchFlags& flags, const std::string& name, bool otherwise) {
  const std::string value = flags.Take(name, otherwise ? "on" : "off");
  if (value != "on" && value != "off") End(absl::StrCat("--", name, " wants on or off"));
  return value == "on";
}

}  // namespace

std::string BenchFlags::Take(const std::string& name, const std::string& otherwise) {
  for (auto it = others.begin(); it != others.end(); ++it) {
    absl::string_view value = *it;
    if (!absl::ConsumePrefix(&value, absl::StrCat("--", name, "="))) continue;
    std::string taken(value);
    others.erase(it);
    return taken;
  }
  return otherwise;
}

BenchFlags ParseBenchFlags(int* argc, char** argv) {
  BenchFlags flags;
  int kept = 0;
  for (int i = 0; i < *argc; ++i) {
    if (i == 0 || absl::StartsWith(argv[i], "--benchmark_")) {
      argv[kept++] = argv[i];
    } else {
      flags.others.push_back(argv[i]);
    }
  }
  *argc = kept;
  flags.device.name = flags.Take("device", flags.device.name);
  const std::string threads = flags.Take("threads", absl::StrCat(flags.device.threads));
  if (!absl::SimpleAtoi(threads, &flags.device.threads)) End("--threads wants a number");
  const auto cores = ParseCoreList(flags.Take("cores", ""));
  if (!cores.ok()) End(cores.status().ToString());
  flags.device.cores = *cores;
  flags.device.instructions = flags.Take("instructions", "");
  flags.device.graphs = TakeSwitch(flags, "graphs", flags.device.graphs);
  flags.device.dependent_launch = TakeSwitch(flags, "dependent-launch", flags.device.dependent_launch);
  flags.device.persistent_attention =
      TakeSwitch(flags, "persistent-attention", flags.device.persistent_attention);
  flags.device.batch_gemm = TakeSwitch(flags, "batch-gemm", flags.device.batch_gemm);
  flags.device.time_algorithms = TakeSwitch(flags, "time-algorithms", flags.device.time_algorithms);
  return flags;
}

std::unique_ptr<Device> OpenBenchDevice(const BenchFlags& flags) {
  absl::StatusOr<std::unique_ptr<Device>> device = OpenDevice(flags.device);
  if (!device.ok()) End(device.status().ToString());
  return *std::move(device);
}

void Finish(Device& device) {
  if (const absl::Status status = device.Synchronize({}); !status.ok()) End(status.ToString());
}

}  // namespace aludel
