#include <cstdio>

#include "absl/strings/str_format.h"
#include "runtime/bench/make_codec.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "server/bench/commands.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-bench make-codec writes an artifact with random weights for a producer and a consumer, of the shape that
aludel-calibrate would give it, to measure what encoding, shipping and reconstruction cost at real sizes. Answers over
such codes are nonsense.

  aludel-bench make-codec --producer /tmp/llama-1b --consumer /tmp/llama-1b-tuned --out /tmp/codec)";

}  // namespace

absl::Status MakeCodecCommand(int argc, char** argv) {
  MakeCodecOptions options;
  int64_t recomputed_layers = options.recomputed_layers;
  int64_t group_layers = 0;
  int64_t seed = 1;
  FlagSet flags(kUsage);
  flags.Add("producer", "DIR", &options.producer, "model of the prefill side: its directory");
  flags.Add("consumer", "DIR", &options.consumer,
            "model of the decode side, BASE+ADAPTER with a LoRA adapter");
  flags.Add("out", "DIR", &options.out, "artifact directory");
  flags.Add("preset", "NAME", &options.preset, "aludel or scd; the other flags shape aludel");
  flags.Add("recomputed-layers", "N", &recomputed_layers, "layers that the consumer runs over every token");
  flags.Add("bytes-per-token", "X", &options.bytes_per_token, "at most; 0: 1/16 of raw");
  flags.Add("group-layers", "N", &group_layers, "layers coded together; 0: as many as memory allows");
  flags.Add("compute-share", "X", &options.compute_share, "of the consumer's prefill that coding may cost");
  flags.Add("seed", "N", &seed, "same seed, same bytes");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (options.producer.empty() || options.consumer.empty() || options.out.empty()) {
    return absl::InvalidArgumentError("--producer, --consumer and --out are needed (see --help)");
  }
  if (group_layers < 0 || options.bytes_per_token < 0 || !(options.compute_share > 0)) {
    return absl::InvalidArgumentError(
        "want --group-layers and --bytes-per-token at least 0 and --compute-share above 0");
  }
  options.recomputed_layers = static_cast<int>(recomputed_layers);
  options.group_layers = static_cast<int>(group_layers);
  options.seed = static_cast<uint64_t>(seed);
  ALUDEL_ASSIGN_OR_RETURN(const MadeCodec made, MakeCodec(options));
  if (made.groups == 0) {
    absl::PrintF("wrote %s: format %s, %.0f bytes/token\n", options.out, made.format, made.bytes_per_token);
    return absl::OkStatus();
  }
  absl::PrintF("wrote %s: format %s, %d groups of %d layers, rank %d, width %d, %.0f bytes/token\n",
               options.out, made.format, made.groups, made.group_layers, made.rank, made.width,
               made.bytes_per_token);
  return absl::OkStatus();
}

}  // namespace aludel
