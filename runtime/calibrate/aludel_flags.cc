#include "runtime/calibrate/aludel_flags.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

absl::Status CheckSideRank(const AludelFlags& raw, const AludelJob& job) {
  const int64_t rank = job.options.side_rank;
  if (rank < 0 || rank % kSideRankUnit != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--side-rank is %d, want a multiple of %d, or 0 for all of it", rank, kSideRankUnit));
  }
  if (rank > 0 && (job.retune || job.base.add)) {
    return absl::InvalidArgumentError(
        "--add and --retune read what side information the format has: they go without --side-rank");
  }
  if (rank > 0 && raw.recomputed_layers == "-1") {
    return absl::InvalidArgumentError(
        "with --recomputed-layers -1 there is no side information: it goes without --side-rank");
  }
  return absl::OkStatus();
}

}  // namespace

void AddAludelFlags(FlagSet* flags, AludelJob* job, AludelFlags* raw) {
  flags->Add(
      "max-kl", "X", &raw->max_kl,
      "aludel: KL to the consumer's local prefill, in nats a token: the upper end of the 95 % interval "
      "of the mean over held-out prompts stays below");
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
      "aludel: of the consumer's prefill that encoding and decoding may cost together; 0: 0.04, or what "
      "a decoder of sensible width costs");
  flags->Add("encoder-for", "WHOM", &raw->encoder_for,
             "aludel: whose cache the codes are made to tell about: consumers, or producer (needs none)");
  flags->Add("allocation", "NAME", &raw->allocation,
             "aludel: waterfill (bits follow each latent's energy) or uniform (four bits each)");
  flags->Add("side-rank", "N", &job->options.side_rank,
             "aludel: directions of the recomputed layers' output that decoders read, a multiple of 8; fewer "
             "are faster to decode; 0: all");
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
  flags->Add("packing", "NAME", &raw->packing,
             "aludel: rans (entropy-coded by scales in the artifact), embedded (the same in planes: frames "
             "that may be cut behind any of them), deflate (by tables in every frame), video (lossless HEVC "
             "pictures; needs libx265 and libavcodec) or fixed (bit widths)");
  flags->Add("planes", "N", &raw->planes,
             "aludel: with --packing embedded, planes of a frame; each that is left out doubles the step");
  flags->Add(
      "repack", &raw->repack,
      "aludel: give the formats in --out, or the one that --format names, the packing rans, or embedded "
      "or video where --packing says so, with scales fitted to --data. Their losses stay");
  flags->Add(
      "work", "DIR", &job->work,
      "aludel: intermediate files; default OUT.work. The directory is removed in the end, with all that "
      "is in it");
  flags->Add("keep-work", &job->keep_work, "aludel: leave it for the next run");
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
        "want --max-kl, --bytes-per-token, --group-layers, --compute-share, --tuning-rate, "
        "--tuning-batch, --tuning-rank, --tuning-minutes and --tuning-stretch at least 0, --tuning at "
        "least -1, --head-tokens and --tail-tokens -1 to 65535, --steps and --tuning-epochs above 0");
  }
  ALUDEL_RETURN_IF_ERROR(CheckSideRank(raw, *job));
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

}  // namespace aludel
