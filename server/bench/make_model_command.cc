#include <cstdio>

#include "runtime/bench/make_model.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/progress.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench make-model writes a checkpoint of a published shape with random weights, in HuggingFace's format
(bf16, sharded safetensors with an index), to measure loading, memory and speed where the weights do not matter.

  aludel-bench make-model --shape llama-1b --out /tmp/llama-1b --tokenizer deploy/demo/base

The servers want a tokenizer beside the weights: any whose ids fit into the shape's vocabulary will do.)";

constexpr int64_t kMegabyte = 1'000'000;

}  // namespace

absl::Status MakeModelCommand(int argc, char** argv) {
  MakeModelOptions options;
  int64_t seed = 1;
  int64_t layers = 0;
  int64_t shard_megabytes = options.shard_bytes / kMegabyte;
  const std::string shapes = "one of " + ModelShapeNames();
  FlagSet flags(kUsage);
  flags.Add("shape", "NAME", &options.shape, shapes.c_str());
  flags.Add("out", "DIR", &options.out, "directory to write, empty or new");
  flags.Add("tokenizer", "DIR", &options.tokenizer, "copy the tokenizer of this model directory");
  flags.Add("layers", "N", &layers, "so many layers instead of the shape's, which is 0");
  flags.Add("seed", "N", &seed, "same seed, same bytes");
  flags.Add("shard-mb", "N", &shard_megabytes, "largest file in MB (millions of bytes)");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (options.shape.empty() || options.out.empty()) {
    return absl::InvalidArgumentError("--shape and --out are needed (see --help)");
  }
  if (shard_megabytes < 1 || shard_megabytes > kMegabyte) {
    return absl::InvalidArgumentError("--shard-mb wants a number from 1 to 1000000");
  }
  if (layers < 0 || layers > 1000)
    return absl::InvalidArgumentError("--layers wants a number from 0 to 1000");
  options.layers = static_cast<int>(layers);
  options.seed = static_cast<uint64_t>(seed);
  options.shard_bytes = shard_megabytes * kMegabyte;
  StopOnSignals();
  ProgressBar bar;
  int64_t shown = -1;
  const auto progress = [&](int64_t done, int64_t total) {
    if (done / kMegabyte != shown) {
      shown = done / kMegabyte;
      bar.Update("write, MB", shown, total / kMegabyte);
    }
    return !StopAsked();
  };
  return MakeModel(options, progress);
}

}  // namespace aludel
