// aludel-calibrate: fits the codes by which one producer's cache becomes a consumer's cache.

#include <cstdio>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "kernels/cpu/onednn_loader.h"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/calibrate/calibrate_job.h"
#include "runtime/calibrate/fit/blas_kernels.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/calibrate/kvtc_job.h"
#include "runtime/calibrate/repack_job.h"
#include "runtime/calibrate/sample_prompts.h"
#include "runtime/calibrate/share_job.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/status_macros.h"
#include "runtime/tool/byte_size.h"
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

// Flags of preset aludel that need a look before they are options.
struct AludelFlags {
  double bytes_per_token = 0;
  double max_kl = 0;
  std::string recomputed_layers = "auto";
  std::string packing = "rans";
  int64_t planes = AludelOptions().planes;
  bool repack = false;
  std::string encoder_for = "consumers";
  std::string allocation = "waterfill";
  int64_t group_layers = 0;
  int64_t tuning_batch = 0;
  bool share = false;
};

void AddAludelFlags(FlagSet* flags, AludelJob* job, AludelFlags* raw) {
  flags->Add(
      "max-kl", "X", &raw->max_kl,
      "aludel: KL to the consumer's local prefill, in nats a token: the upper end of the 95 % interval "
      "of the mean "
      "over held-out prompts stays below");
  flags->Add("bytes-per-token", "X", &raw->bytes_per_token,
             "aludel: rate, headers included; default 1/16 of raw");
  flags->Add(
      "recomputed-layers", "N", &raw->recomputed_layers,
      "aludel: layers that the consumer runs over every token; -1 none, auto: fewest that meet --max-kl");
  flags->Add("format", "NAME", &job->format, "aludel: name of the format; default aludel-pN");
  flags->Add(
      "group-layers", "N", &raw->group_layers,
      "aludel: layers coded together; more save bytes, fewer ship earlier; 0: as many as memory allows");
  flags->Add(
      "compute-share", "X", &job->options.compute_share,
      "aludel: of the consumer's prefill that encoding and decoding may cost together; 0: 0.04, or what a "
      "decoder of sensible width costs");
  flags->Add("encoder-for", "WHOM", &raw->encoder_for,
             "aludel: whose cache the codes are made to tell about: consumers, or producer (needs none)");
  flags->Add("allocation", "NAME", &raw->allocation,
             "aludel: waterfill (bits follow each latent's energy) or uniform (four bits each)");
  flags->Add("linear", &job->options.linear, "aludel: closed-form decoders instead of small networks");
  flags->Add("steps", "N", &job->options.training.steps, "aludel: training steps of a decoder");
  flags->Add(
      "tuning", "N", &job->options.tuning.passes,
      "aludel: passes over the prompts that then tune it to their answers; 0: none; -1: 2, with --linear 0");
  flags->Add("tuning-data", "FILE", &job->tuning_data,
             "aludel: more prompts to tune on, each once; the more, the lower the loss");
  flags->Add(
      "retune", &job->retune,
      "aludel: tune decoders of the format in --out further; its encoder stays as it is. --data should "
      "be prompts that they were not fitted to");
  flags->Add("share", &raw->share,
             "aludel: let adapters (--consumer BASE+ADAPTER) use the decoders that --out has for their base "
             "where what they lose by them (the upper end of its 95 % interval) is at most --max-kl; nothing "
             "is fitted");
  flags->Add(
      "tuning-rate", "X", &job->options.tuning.learning_rate,
      "aludel: learning rate of tuning; 0: 3e-4, of linear decoders 3e-5, of corrections to them 1e-3");
  flags->Add(
      "tuning-batch", "N", &raw->tuning_batch,
      "aludel: prompts a step of tuning; with few prompts take less; 0: 16, of corrections 2 passages");
  flags->Add("tuning-rank", "N", &job->options.passages.rank,
             "aludel: rank of the corrections by which --tuning-data tunes linear decoders; 0: all weights");
  flags->Add("tuning-epochs", "N", &job->options.passages.epochs,
             "aludel: times that corrections see every passage of --tuning-data");
  flags->Add("tuning-stretch", "X", &job->options.tuning.stretch_weight,
             "aludel: how much a token of a prompt counts in tuning beside one of its answer");
  flags->Add("tuning-minutes", "X", &job->options.passages.minutes,
             "aludel: corrections learn no longer than that, and the best so far is kept; 0: no limit");
  flags->Add(
      "head-tokens", "N", &job->head_tokens,
      "aludel, kvtc: tokens at the prompt's head, where attention sinks are, that the consumer computes "
      "itself; -1: 8, kvtc 4");
  flags->Add("tail-tokens", "N", &job->tail_tokens,
             "aludel, kvtc: the same at its tail, beside the last token; -1: none, kvtc 11");
  flags->Add("sensitivity-prompts", "N", &job->sensitivity_prompts,
             "aludel: prompts whose answers show where errors hurt; 0: all layers and tokens count alike");
  flags->Add(
      "packing", "NAME", &raw->packing,
      "aludel: rans (entropy-coded by scales in the artifact), embedded (the same in planes: frames "
      "that may be "
      "cut behind any of them), deflate (by tables in every frame), video (lossless HEVC pictures; needs "
      "libx265 and libavcodec) or fixed (bit widths)");
  flags->Add("planes", "N", &raw->planes,
             "aludel: with --packing embedded, planes of a frame; each that is left out doubles the step");
  flags->Add("repack", &raw->repack,
             "aludel: give the formats in --out, or the one that --format names, the packing rans, or "
             "embedded or video where "
             "--packing says so, with scales fitted to --data. Their losses stay");
  flags->Add(
      "work", "DIR", &job->work,
      "aludel: intermediate files; default OUT.work. The directory is removed in the end, with all that is "
      "in it");
  flags->Add("keep-work", &job->keep_work, "aludel: leave it for the next run");
}

// Flags of the plan, before they are numbers.
struct PlanFlags {
  std::string max_memory, max_disk, max_device_memory, budget;
  double device_flops = 0, device_f32_flops = 0, device_bandwidth = 0, device_share = 0;
  int64_t patience = -1, training_tokens = 0;
};

void AddPlanFlags(FlagSet* flags, AludelJob* job, PlanFlags* raw) {
  flags->Add("dry-run", &job->dry_run,
             "aludel: measure this machine for some seconds, print the plan, and write nothing");
  flags->Add("max-memory", "SIZE", &raw->max_memory,
             "aludel: end before the start where more is needed, as 8GB or 7.5GiB; default: what is free");
  flags->Add("max-disk", "SIZE", &raw->max_disk, "aludel: the same of the disk that holds --work");
  flags->Add("max-device-memory", "SIZE", &raw->max_device_memory,
             "aludel: the same of the memory of a GPU that --device names");
  flags->Add(
      "budget", "TIME", &raw->budget,
      "aludel: as 20m or 1h30m: takes as many prompts, the first of each file, steps and passes as fit into "
      "it, by the plan");
  flags->Add("training-tokens", "N", &raw->training_tokens,
             "aludel: tokens that a decoder is fitted to, spread over all prompts; they are held in memory, "
             "in bf16; "
             "0: all");
  flags->Add("patience", "N", &raw->patience,
             "aludel: end the training of a network after N looks at held-out tokens, of 20, that found no "
             "lower error, "
             "and keep the best; 0: never; -1: with --budget 4, else never");
  flags->Add("device-flops", "X", &raw->device_flops,
             "aludel: with --dry-run, plan for a device that is not here: FLOP a second of its data sheet, "
             "as 990e12");
  flags->Add(
      "device-f32-flops", "X", &raw->device_f32_flops,
      "aludel: the same of f32 products, which fits and training are made of, as 67e12; 0: a sixteenth");
  flags->Add("device-bandwidth", "X", &raw->device_bandwidth,
             "aludel: bytes a second of its memory, as 4.8e12");
  flags->Add("device-share", "X", &raw->device_share,
             "aludel: the share of these that is expected of it; 0: 0.4");
}

// What would be ignored is refused.
absl::Status CheckIsPlanned(const PlanFlags& raw, const AludelJob& job, bool planned) {
  const bool asked = job.dry_run || !raw.max_memory.empty() || !raw.max_disk.empty() ||
                     !raw.max_device_memory.empty() || !raw.budget.empty() || raw.device_flops != 0 ||
                     raw.device_f32_flops != 0 || raw.device_bandwidth != 0 || raw.device_share != 0 ||
                     raw.patience != -1 || raw.training_tokens != 0;
  if (planned || !asked) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--dry-run, --max-memory, --max-disk, --max-device-memory, --budget, --device-flops, "
      "--device-f32-flops, --device-bandwidth, --device-share, "
      "--patience and --training-tokens are for fits and --retune of preset aludel");
}

absl::Status ReadPlanFlags(const PlanFlags& raw, AludelJob* job) {
  if (!raw.max_memory.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(job->max_memory, ParseBytes("--max-memory", raw.max_memory));
  }
  if (!raw.max_disk.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(job->max_disk, ParseBytes("--max-disk", raw.max_disk));
  }
  if (!raw.max_device_memory.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(job->max_device_memory, ParseBytes("--max-device-memory", raw.max_device_memory));
  }
  if (!raw.budget.empty()) {
    ALUDEL_ASSIGN_OR_RETURN(job->budget, ParseSeconds("--budget", raw.budget));
  }
  if (raw.patience < -1 || raw.training_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--patience is %d and --training-tokens is %d, want 0 or more, or --patience -1",
                        raw.patience, raw.training_tokens));
  }
  if (raw.patience >= 0 && (job->options.linear || job->retune)) {
    return absl::InvalidArgumentError(
        "--patience ends the training of networks: it goes without --linear and --retune");
  }
  if (raw.training_tokens > 0 && job->retune) {
    return absl::InvalidArgumentError(
        "--training-tokens is of fits: --retune goes without it and reads all of --data");
  }
  if (raw.patience >= 0) job->patience = raw.patience;
  job->options.training_tokens = raw.training_tokens;
  const bool device = raw.device_flops > 0 && raw.device_bandwidth > 0;
  if (!(raw.device_flops >= 0 && raw.device_f32_flops >= 0 && raw.device_bandwidth >= 0 &&
        raw.device_share >= 0 && raw.device_share <= 1) ||
      (raw.device_flops > 0) != (raw.device_bandwidth > 0) || (device && !job->dry_run) ||
      ((raw.device_share > 0 || raw.device_f32_flops > 0) && !device)) {
    return absl::InvalidArgumentError(
        "--device-flops and --device-bandwidth go together, above 0, with --dry-run, and --device-f32-flops "
        "and "
        "--device-share, at most 1, with them");
  }
  if (device && job->budget > 0) {
    return absl::InvalidArgumentError(
        "--budget is spent by rates that are measured here: it goes without --device-flops");
  }
  if (raw.device_share > 0) job->device_share = raw.device_share;
  job->device_flops = raw.device_flops;
  job->device_f32_flops = raw.device_f32_flops > 0 ? raw.device_f32_flops : raw.device_flops / 16;
  job->device_bandwidth = raw.device_bandwidth;
  return absl::OkStatus();
}

absl::Status ReadAludelFlags(const AludelFlags& raw, int64_t seed, AludelJob* job) {
  if (raw.max_kl > 0 && raw.bytes_per_token > 0) {
    return absl::InvalidArgumentError("--max-kl and --bytes-per-token exclude each other");
  }
  if (raw.max_kl < 0 || raw.bytes_per_token < 0 || raw.group_layers < 0 || job->sensitivity_prompts < 0 ||
      job->head_tokens < -1 || job->head_tokens > UINT16_MAX || job->tail_tokens < -1 ||
      job->tail_tokens > UINT16_MAX || job->options.training.steps < 1 ||
      !(job->options.compute_share >= 0) || job->options.tuning.passes < -1 ||
      !(job->options.tuning.learning_rate >= 0) || raw.tuning_batch < 0 || job->options.passages.rank < 0 ||
      !(job->options.passages.minutes >= 0) || job->options.passages.epochs < 1 ||
      !(job->options.tuning.stretch_weight >= 0)) {
    return absl::InvalidArgumentError(
        "want --max-kl, --bytes-per-token, --group-layers, --compute-share, --tuning-rate, --tuning-batch, "
        "--tuning-rank, --tuning-minutes and --tuning-stretch at least 0, --tuning at least -1, "
        "--head-tokens and "
        "--tail-tokens -1 "
        "to 65535, --steps and --tuning-epochs above 0");
  }
  if (job->options.linear && job->retune) {
    return absl::InvalidArgumentError(
        "--retune tunes decoders as they are, linear or not: it goes without --linear");
  }
  if (job->retune && (job->base.add || raw.max_kl > 0 || raw.bytes_per_token > 0)) {
    return absl::InvalidArgumentError(
        "--retune keeps the encoder and its rate: it goes without --add, --max-kl and --bytes-per-token");
  }
  if (raw.share && (job->retune || job->base.add || raw.max_kl <= 0)) {
    return absl::InvalidArgumentError("--share needs --max-kl, and goes without --add and --retune");
  }
  if (job->retune && job->options.tuning.passes == 0 && job->tuning_data.empty()) {
    return absl::InvalidArgumentError("--retune needs --tuning above 0 or --tuning-data");
  }
  if (raw.max_kl > 0) job->max_kl = raw.max_kl;
  if (raw.bytes_per_token > 0) job->bytes_per_token = raw.bytes_per_token;
  if (raw.recomputed_layers != "auto") {
    int layers = 0;
    if (!absl::SimpleAtoi(raw.recomputed_layers, &layers)) {
      return absl::InvalidArgumentError("--recomputed-layers is \"" + raw.recomputed_layers +
                                        "\", want a number or auto");
    }
    job->recomputed_layers = layers;
  }
  const std::optional<LatentPacking> packing = ParseLatentPacking(raw.packing);
  if (!packing.has_value()) {
    return absl::InvalidArgumentError("--packing is \"" + raw.packing +
                                      "\", want rans, embedded, deflate, video or fixed");
  }
  if (raw.repack && (job->base.add || job->retune || raw.max_kl > 0 || raw.bytes_per_token > 0)) {
    return absl::InvalidArgumentError(
        "--repack keeps encoders and decoders: it goes without --add, --retune, --max-kl and "
        "--bytes-per-token");
  }
  if (raw.encoder_for != "consumers" && raw.encoder_for != "producer") {
    return absl::InvalidArgumentError("--encoder-for is \"" + raw.encoder_for +
                                      "\", want consumers or producer");
  }
  if (raw.allocation != "waterfill" && raw.allocation != "uniform") {
    return absl::InvalidArgumentError("--allocation is \"" + raw.allocation +
                                      "\", want waterfill or uniform");
  }
  if (raw.encoder_for == "producer") job->options.encoder_source = EncoderSource::kProducer;
  if (raw.allocation == "uniform") job->options.allocation = BitAllocation::kUniform;
  job->options.packing = *packing;
  if (raw.planes < 1 || raw.planes > kMaxEmbeddedPlanes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--planes is %d, want 1 to %d", raw.planes, kMaxEmbeddedPlanes));
  }
  job->options.planes = static_cast<int>(raw.planes);
  job->options.group_layers = static_cast<int>(raw.group_layers);
  job->options.training.seed = static_cast<uint64_t>(seed);
  job->options.tuning.seed = static_cast<uint64_t>(seed);
  job->options.passages.seed = static_cast<uint64_t>(seed);
  if (raw.tuning_batch > 0) {
    job->options.tuning.batch = raw.tuning_batch;
    job->options.passages.batch = raw.tuning_batch;
  }
  if (job->options.tuning.learning_rate > 0) {
    job->options.passages.learning_rate = job->options.tuning.learning_rate;
  }
  return absl::OkStatus();
}

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
            "program code "
            "(/usr/share/doc, Python's and Perl's libraries, /usr/include), and end");
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
        "want --aligner-width, --aligner-epochs and --aligner-tokens above 0, --max-patch and --max-control "
        "at least 0, and "
        "--held-out above 0 and at most 0.5");
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
