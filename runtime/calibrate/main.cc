// aludel-calibrate: fits the codes by which one producer's cache becomes a consumer's cache.

#include <cstdio>
#include <optional>
#include <string>

#include "kernels/cpu/onednn_loader.h"
#include "runtime/calibrate/aludel_flags.h"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/calibrate/calibrate_job.h"
#include "runtime/calibrate/fit/blas_kernels.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/calibrate/kvtc_job.h"
#include "runtime/calibrate/plan/plan_flags.h"
#include "runtime/calibrate/repack_job.h"
#include "runtime/calibrate/sample_prompts.h"
#include "runtime/calibrate/share_job.h"
#include "runtime/status_macros.h"
#include "runtime/tool/flag_set.h"
#include "runtime/tool/machine_flags.h"
#include "runtime/tool/progress.h"
#include "runtime/tool/version.h"

namespace aludel {
namespace {

constexpr char kUsage[] =
    R"(aludel-calibrate fits a codec between a base model and its fine-tunes. It runs both over calibration prompts
and writes an artifact directory: per format one encoder for the prefill server, and one decoder per consumer for
the decode servers. Point both servers' `codec` at that directory.

  aludel-calibrate --producer base --consumer chat --data calibration.jsonl --out codec
  aludel-calibrate --producer base --consumer base+json --data calibration.jsonl --out codec --add

Prompts are lines of {"context": ..., "question": ...} or {"messages": [...]} (OpenAI's batch files, too), rendered with
the first consumer's chat template, of {"text": ...}, and of {"ids": [...]}, which a gateway's `capture` writes; use what is like the traffic you expect and several kinds of text, a few hundred prompts or more. The
second command adds a consumer without touching the encoder, so running prefill servers and their cached frames stay
valid. Without prompts of your own begin with pieces of this machine's documentation and program code:

  aludel-calibrate --sample calibration.jsonl                 writes 400 of them (--prompts) and ends; look at them, add yours

Preset "aludel" (the default) sends quantized innovations of the producer's cache, which the consumer decodes with a
small network from them and from what its own first layers know. State a loss or a rate:

  aludel-calibrate ... --max-kl 0.02                          fewest recomputed layers, then fewest bytes, that meet it
  aludel-calibrate ... --recomputed-layers 2 --bytes-per-token 64

The network is trained to resemble the consumer's cache and then tuned to make the consumer say what it says on its
own cache. Tuning learns more from more prompts, which cost no fit and little disk:

  aludel-calibrate ... --tuning-data more.jsonl               each of its prompts is seen once; with --linear give
                                                              several questions about each passage, line by line
  aludel-calibrate ... --retune --tuning-data traffic.jsonl   tunes the decoders in --out further, nothing else
  aludel-calibrate ... --repack                               fits the scales of the codes in --out, nothing else

An adapter whose answers are close enough to its base's by the base's own decoder needs none fitted:

  aludel-calibrate ... --consumer base+adapter --share --max-kl 0.02    measures that, and writes it down where it holds

A plan of every stage's time, memory and disk is printed before the start, from what the prompts make it compute and a few
seconds' measurement of this machine, and beside what it took at the end. What does not fit is refused at once:

  aludel-calibrate ... --dry-run                              the plan alone
  aludel-calibrate ... --max-memory 12GB --max-disk 40GB      bounds; without them what the machine has free
  aludel-calibrate ... --budget 20m                           the most that 20 minutes buy, and what more would buy
  aludel-calibrate ... --dry-run --device-flops 990e12 --device-f32-flops 67e12 --device-bandwidth 4.8e12   of a device that is not here

OUT.report/FORMAT.txt and .json tell what each stage took, every rate that was tried and its loss, and each layer's error.
A run that was killed at any point goes on where it was when it is started again, and writes the same bytes. What a
budget buys follows from measured rates: two whole runs of one differ, and what is cut when its time is over does.

--max-kl ends with an error and the measured floor where it cannot be met. Intermediate files (OUT.work) let an
interrupted run resume. Each run adds its format, named aludel-pN for N recomputed layers, to the artifact in --out.

Preset "scd" is semantic cache distillation as published (arXiv 2606.07684): joint SVD for most layers
("reuse-only" is that for all of them) and MLP aligners for a few layers chosen by their measured gain.

Preset "kvtc" (arXiv 2511.01815) is for one model on both sides: principal components of all layers' K and V, bit
widths by dynamic programming, DEFLATE; 16 tokens at the prompt's ends are left to the consumer.

  aludel-calibrate --preset kvtc --producer base --consumer base --data calibration.jsonl --out codec --bytes-per-token 100)";

absl::Status WriteSample(const std::string& file, int64_t prompts, int64_t seed) {
  SamplePromptsOptions options;
  options.roots = SystemTextRoots();
  if (prompts != 0) options.count = prompts;
  options.seed = static_cast<uint64_t>(seed);
  ALUDEL_RETURN_IF_ERROR(WriteSamplePrompts(options, file));
  std::printf("wrote %s: %lld prompts; --data %s\n", file.c_str(), static_cast<long long>(options.count),
              file.c_str());
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  CalibrateJob job;
  AludelJob aludel;
  AludelFlags aludel_flags;
  std::string preset = "aludel";
  int64_t max_patch = job.scd.max_patch;
  int64_t max_control = job.max_control;
  int64_t epochs = job.scd.aligner.epochs;
  int64_t seed = 1;
  std::string storage = "bf16";
  MachineFlags machine;
  FlagSet flags(kUsage);
  flags.Add("producer", "DIR", &job.producer, "model of the prefill side: its directory");
  flags.AddList("consumer", "DIR", &job.consumers,
                "model of a decode side, BASE+ADAPTER with a LoRA adapter; may be repeated");
  flags.Add("data", "FILE", &job.data, "calibration prompts, JSON lines");
  flags.Add("out", "DIR", &job.out, "artifact directory to write");
  flags.Add("add", &job.add, "add the consumers to the artifact in --out; its encoders stay as they are");
  flags.Add("preset", "NAME", &preset, "which formats to fit: aludel, scd (with reuse-only) or kvtc");
  flags.Add("prompts", "N", &job.prompts, "read at most N prompts; 0: all");
  std::string sample;
  flags.Add("sample", "FILE", &sample,
            "write --prompts (400) calibration prompts, pieces of installed documentation, licenses and "
            "program code (/usr/share/doc, Python's and Perl's libraries, /usr/include), and end");
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
  flags.Add("max-control", "N", &max_control, "also fit zero-byte controls with 0 to N recomputed layers");
  flags.Add(
      "store", "TYPE", &storage,
      "matrices of the artifact: f32, bf16 or int8, which has a scale per row and half the bytes of bf16");
  machine.AddCompute(&flags, job.compute, "arithmetic of both models");
  flags.Add("seed", "N", &seed, "same seed, machine, device and threads: the same bytes");
  machine.AddDevice(
      &flags,
      "cpu or cuda:N, for the models and for large products of fits and training; solvers are the CPU's");
  machine.AddThreads(&flags);
  AddAludelFlags(&flags, &aludel, &aludel_flags);
  PlanFlags plan_flags;
  AddPlanFlags(&flags, &aludel, &plan_flags);
  flags.AddVersion(std::string("aludel-calibrate ") + kVersion);
  ALUDEL_RETURN_IF_ERROR(flags.Parse(argc, argv));
  if (const auto answer = flags.Answer(); answer.has_value()) {
    std::fputs(answer->c_str(), stdout);
    return absl::OkStatus();
  }
  if (!sample.empty()) return WriteSample(sample, job.prompts, seed);
  if (job.producer.empty() || job.consumers.empty() || job.data.empty() || job.out.empty()) {
    return absl::InvalidArgumentError("--producer, --consumer, --data and --out are needed (see --help)");
  }
  if (preset != "scd" && preset != "aludel" && preset != "kvtc") {
    return absl::InvalidArgumentError("--preset is \"" + preset + "\", want aludel, scd or kvtc");
  }
  if (preset != "aludel" && (aludel_flags.share || aludel_flags.repack)) {
    return absl::InvalidArgumentError("--share and --repack are for preset aludel, --preset is \"" + preset +
                                      "\"");
  }
  const bool planned = preset == "aludel" && !aludel_flags.share && !aludel_flags.repack;
  ALUDEL_RETURN_IF_ERROR(CheckIsPlanned(plan_flags, aludel, planned));
  // Those of old artifacts are found as they are.
  const bool new_format = !aludel_flags.share && !aludel_flags.repack && !aludel.retune;
  if (new_format && aludel.format.find('@') != std::string::npos) {
    return absl::InvalidArgumentError("--format is \"" + aludel.format +
                                      "\", want none with @: NAME@N is a cut of an embedded format NAME");
  }
  if (job.scd.aligner.width < 1 || epochs < 1 || max_patch < 0 || max_control < 0 ||
      job.scd.statistics.sample_tokens < 1 || !(job.held_out > 0 && job.held_out <= 0.5)) {
    return absl::InvalidArgumentError(
        "want --aligner-width, --aligner-epochs and --aligner-tokens above 0, --max-patch and "
        "--max-control at least 0, and --held-out above 0 and at most 0.5");
  }
  ALUDEL_ASSIGN_OR_RETURN(job.compute, machine.Compute());
  ALUDEL_ASSIGN_OR_RETURN(job.storage, ParseMatrixStorage(storage));
  job.max_control = static_cast<int>(max_control);
  job.scd.max_patch = static_cast<int>(max_patch);
  job.scd.aligner.epochs = static_cast<int>(epochs);
  job.scd.aligner.seed = static_cast<uint64_t>(seed);
  job.scd.statistics.seed = static_cast<uint64_t>(seed);
  ALUDEL_ASSIGN_OR_RETURN(const auto device, machine.Open());
  ALUDEL_ASSIGN_OR_RETURN(const int threads, machine.Threads());
  ALUDEL_RETURN_IF_ERROR(cpu::LoadOneDnn());  // it multiplies what fits are made of
  SetProductThreads(threads);
  const ProductDevice products(device.get());
  StopOnSignals();
  if (preset == "scd") return RunCalibrateJob(job, device.get());
  aludel.base = job;
  ALUDEL_RETURN_IF_ERROR(ReadAludelFlags(aludel_flags, seed, &aludel));
  ALUDEL_RETURN_IF_ERROR(ReadPlanFlags(plan_flags, &aludel));
  if (aludel_flags.repack) return RunRepackJob(aludel, device.get());
  if (preset == "kvtc") return RunKvtcJob(aludel, device.get());
  if (aludel_flags.share) return RunShareJob(aludel, device.get());
  return RunAludelJob(aludel, device.get());
}

}  // namespace
}  // namespace aludel

int main(int argc, char** argv) {
  aludel::StartWithBetterBlasKernels(argv);
  const absl::Status status = aludel::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "aludel-calibrate: %s\n", std::string(status.message()).c_str());
  return absl::IsCancelled(status) ? 130 : 2;
}
