#include <cstdio>

#include "runtime/bench/make_adapter.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench make-adapter writes a LoRA adapter with random weights for a model, in PEFT's layout, over every linear
layer but the head: to measure many adapters, and to test with them.

  aludel-bench make-adapter --base deploy/demo/chat --out /tmp/adapters/one --rank 16 --seed 1)";

}  // namespace

absl::Status MakeAdapterCommand(int argc, char** argv) {
  MakeAdapterOptions options;
  int64_t seed = 1;
  FlagSet flags(kUsage);
  flags.Add("base", "DIR", &options.base, "model directory");
  flags.Add("out", "DIR", &options.out, "directory to write, empty or new");
  flags.Add("rank", "N", &options.rank, "of every update");
  flags.Add("seed", "N", &seed, "same seed, same bytes");
  flags.Add("strength", "X", &options.strength,
            "size of an update's outputs beside those of its matrix, about");
  flags.Add("reads-only", &options.reads_only,
            "without updates of keys and values: for cache_of \"base_always\"");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (options.base.empty() || options.out.empty()) {
    return absl::InvalidArgumentError("--base and --out are needed (see --help)");
  }
  options.seed = static_cast<uint64_t>(seed);
  return MakeAdapter(options);
}

}  // namespace aludel
