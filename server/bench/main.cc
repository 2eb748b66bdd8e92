// aludel-bench: benchmarks of a whole machine, one sub-command each.

#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "runtime/tool/version.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

struct SubCommand {
  absl::string_view name;
  absl::string_view summary;
  absl::Status (*run)(int argc, char** argv);
};

constexpr SubCommand kSubCommands[] = {
    {"codec", "measure encoding and reconstruction against the prefill that they replace", CodecCommand},
    {"coder", "measure the entropy coders of codes and lossless frames against a copy", CoderCommand},
    {"engine", "measure continuous batching and the prefix cache against one request at a time",
     EngineCommand},
    {"link", "measure the data plane between two processes of this machine", LinkCommand},
    {"load", "measure loading a model from a cold disk against the disk itself", LoadCommand},
    {"make-adapter", "write a random LoRA adapter for a model", MakeAdapterCommand},
    {"make-codec", "write a random artifact for two models, where only its speed matters", MakeCodecCommand},
    {"make-model", "write a checkpoint of a published shape with random weights", MakeModelCommand},
    {"packing", "code the latents of prompts in every packing: bytes against entropy, rates", PackingCommand},
    {"route-sim", "simulate how gateways route a trace over many servers, policy against policy",
     RouteSimCommand},
    {"serve", "load an OpenAI-compatible endpoint and measure what its users would see", ServeCommand},
    {"store", "measure look-ups of a prefix store", StoreCommand},
    {"store-load", "read a prefix store from a disk, to be compared with the disk", StoreLoadCommand},
    {"store-sim", "simulate where a prefix store keeps what, over a trace", StoreSimCommand},
    {"ttft", "measure the time to the first token of handoffs and of local prefill through real servers",
     TtftCommand},
};

std::string Usage() {
  std::string text =
      "aludel-bench SUB-COMMAND [FLAGS]: benchmarks of this machine. Each sub-command explains itself with "
      "--help; --version tells which aludel-bench this is.\n\n";
  for (const SubCommand& command : kSubCommands) {
    absl::StrAppendFormat(&text, "  %-12s %s\n", command.name, command.summary);
  }
  return text;
}

int Main(int argc, char** argv) {
  const absl::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help") {
    std::fputs(Usage().c_str(), stdout);
    return 0;
  }
  if (name == "--version") {
    absl::PrintF("aludel-bench %s\n", kVersion);
    return 0;
  }
  for (const SubCommand& command : kSubCommands) {
    if (command.name != name) continue;
    const absl::Status status = command.run(argc - 1, argv + 1);
    if (status.ok()) return 0;
    absl::FPrintF(stderr, "aludel-bench %s: %s\n", name, std::string(status.message()));
    return absl::IsCancelled(status) ? 130 : 2;
  }
  absl::FPrintF(stderr, "aludel-bench: sub-command is \"%s\"\n\n%s", name, Usage());
  return 2;
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) { return aludel::Main(argc, argv); }
