// aludel-calibrate: fits the codes by which one producer's cache becomes a consumer's cache.

#include <cstdio>
#include <string>

#include "kernels/device.h"
#include "runtime/offline/calibrate_job.h"
#include "runtime/offline/flag_set.h"
#include "runtime/offline/progress.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-calibrate fits a codec between a base model and its fine-tunes. It runs both over calibration prompts
and writes an artefact directory: per format one encoder for the prefill server, and one decoder per consumer for
the decode servers. Point both servers' `codec` at that directory.

  aludel-calibrate --producer base --consumer chat --data calibration.jsonl --out codec
  aludel-calibrate --producer base --consumer json --data calibration.jsonl --out codec --add

Prompts are lines of {"context": ..., "question": ...}, rendered with the first consumer's chat template; use text
like the traffic you expect, a few hundred prompts or more. The second command adds a consumer without touching
the encoder, so running prefill servers and their cached frames stay valid.

Preset "paper" is semantic cache distillation as published (arXiv 2606.07684): joint SVD for most layers
("reuse-only" is that for all of them) and MLP aligners for a few layers chosen by their measured gain.)";

absl::Status Run(int argc, char** argv) {
  CalibrateJob job;
  std::string preset = "paper";
  std::string compute = Name(job.compute);
  int64_t max_patch = job.scd.max_patch;
  int64_t max_control = job.max_control;
  int64_t epochs = job.scd.aligner.epochs;
  int64_t seed = 1;
  int64_t threads = 0;
  FlagSet flags(kUsage);
  flags.Add("producer", "DIR", &job.producer, "model directory of the prefill side");
  flags.AddList("consumer", "DIR", &job.consumers, "model directory of a decode side; may be repeated");
  flags.Add("data", "FILE", &job.data, "calibration prompts, JSON lines");
  flags.Add("out", "DIR", &job.out, "artefact directory to write");
  flags.Add("add", &job.add, "add the consumers to the artefact in --out; its encoders stay as they are");
  flags.Add("preset", "NAME", &preset, "which formats to fit: paper");
  flags.Add("prompts", "N", &job.prompts, "read at most N prompts; 0: all");
  flags.Add("held-out", "X", &job.held_out, "fraction of prompts that choose and measure but do not fit");
  flags.Add("rank-k", "X", &job.scd.rank_k, "latents of K as a fraction of kv_dim");
  flags.Add("rank-v", "X", &job.scd.rank_v, "latents of V as a fraction of kv_dim");
  flags.Add("rank-h", "X", &job.scd.rank_h, "latents of H in patch layers as a fraction of the hidden width");
  flags.Add("max-patch", "N", &max_patch, "patch layers; 0: as published, 6 or 3/8 of a shallow model");
  flags.Add("most-efficient", &job.scd.stop_at_most_efficient,
            "stop at the best gain(S_k) / (cost k) instead of taking all of --max-patch");
  flags.Add("ridge", "X", &job.scd.ridge, "ridge of regressions, as a fraction of the mean squared input");
  flags.Add("aligner-tokens", "N", &job.scd.statistics.sample_tokens, "tokens that aligners train on");
  flags.Add("aligner-width", "N", &job.scd.aligner.width, "width of the aligners' MLP");
  flags.Add("aligner-epochs", "N", &epochs, "passes over those tokens");
  flags.Add("max-control", "N", &max_control, "also fit zero-byte controls with 0 to N native layers");
  flags.Add("compute", "TYPE", &compute, "arithmetic of both models: f32 or bf16");
  flags.Add("seed", "N", &seed, "same seed, machine and threads: the same bytes");
  flags.Add("threads", "N", &threads, "CPU threads; 0: all allowed cores");
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (flags.help_asked()) {
    std::fputs(flags.Help().c_str(), stdout);
    return absl::OkStatus();
  }
  if (job.producer.empty() || job.consumers.empty() || job.data.empty() || job.out.empty()) {
    return absl::InvalidArgumentError("--producer, --consumer, --data and --out are needed (see --help)");
  }
  if (preset != "paper") {
    return absl::InvalidArgumentError("--preset is \"" + preset + "\", want paper");
  }
  if (compute != Name(DType::kF32) && compute != Name(DType::kBf16)) {
    return absl::InvalidArgumentError("--compute is \"" + compute + "\", want f32 or bf16");
  }
  if (job.scd.aligner.width < 1 || epochs < 1 || max_patch < 0 || max_control < 0 ||
      job.scd.statistics.sample_tokens < 1 || !(job.held_out > 0 && job.held_out <= 0.5)) {
    return absl::InvalidArgumentError(
        "want --aligner-width, --aligner-epochs and --aligner-tokens above 0, --max-patch and --max-control "
        "at least 0, and "
        "--held-out above 0 and at most 0.5");
  }
  job.compute = compute == Name(DType::kBf16) ? DType::kBf16 : DType::kF32;
  job.max_control = static_cast<int>(max_control);
  job.scd.max_patch = static_cast<int>(max_patch);
  job.scd.aligner.epochs = static_cast<int>(epochs);
  job.scd.aligner.seed = static_cast<uint64_t>(seed);
  job.scd.statistics.seed = static_cast<uint64_t>(seed);
  DeviceOptions device_options;
  device_options.threads = static_cast<int>(threads);
  ALUDEL_ASSIGN_OR_RETURN(const auto device, OpenDevice(device_options));
  StopOnSignals();
  return RunCalibrateJob(job, device.get());
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  const absl::Status status = aludel::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "aludel-calibrate: %s\n", std::string(status.message()).c_str());
  return absl::IsCancelled(status) ? 130 : 2;
}
