#include "runtime/calibrate/aludel_format.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/codec/aludel/code_range.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

absl::StatusOr<std::string> DescribeTuningData(const AludelJob& job, const AludelOutcome& outcome) {
  ALUDEL_ASSIGN_OR_RETURN(const std::string more, DescribeData(job.tuning_data));
  return absl::StrCat(outcome.tuning_prompts, " prompts of ", more);
}

absl::Status NoteRetuning(const AludelJob& job, const AludelOutcome& outcome,
                          std::map<std::string, std::string>* notes) {
  std::vector<std::string> parts;
  for (const std::string& directory : job.base.consumers) parts.push_back(ModelName(directory));
  std::string note = absl::StrJoin(parts, ", ");
  const int64_t passes = TuningPasses(job.options);
  if (passes > 0) {
    ALUDEL_ASSIGN_OR_RETURN(const std::string data, DescribeData(job.base.data));
    absl::StrAppendFormat(&note, ": %d passes over %s", passes, data);
  }
  if (outcome.tuning_prompts > 0) {
    ALUDEL_ASSIGN_OR_RETURN(const std::string more, DescribeTuningData(job, outcome));
    absl::StrAppend(&note, ": ", more);
  }
  std::string& all = (*notes)["retuned"];
  all = absl::StrCat(all, all.empty() ? "" : "; ", note);
  return absl::OkStatus();
}

std::string Linear(int64_t passes, int64_t rank, const AludelOutcome& outcome) {
  if (passes == 0 && outcome.tuning_prompts == 0) return "linear, closed form";
  if (passes == 0 && rank > 0) return absl::StrCat("linear, tuned by corrections of rank ", rank);
  return absl::StrCat("linear, tuned, ", passes, " passes over its prompts");
}

// How the format was made; `old` is what the job extends, or null.
absl::Status FillNotes(const AludelJob& job, const ArtifactFormat* old, const AludelOutcome& outcome,
                       ArtifactFormat* format) {
  if (old != nullptr) {
    format->notes = old->notes;
    format->max_kl = old->max_kl;
    return job.retune ? NoteRetuning(job, outcome, &format->notes) : absl::OkStatus();
  }
  format->max_kl = job.max_kl;
  ALUDEL_ASSIGN_OR_RETURN(format->notes["data"], DescribeData(job.base.data));
  format->notes["prompts"] =
      absl::StrFormat("%d fitted (%d tokens), %d held out", outcome.prompts.train.size(),
                      TokenCount(outcome.prompts.train), outcome.prompts.held_out.size());
  if (outcome.tuning_prompts > 0) {
    ALUDEL_ASSIGN_OR_RETURN(format->notes["tuning data"], DescribeTuningData(job, outcome));
  }
  const FittedDecoder& decoder = outcome.chosen.decoders.front();
  // A training may have ended early.
  const auto groups = static_cast<int64_t>(outcome.chosen.shape.groups.size());
  const int64_t steps =
      decoder.steps > 0 ? decoder.steps / std::max<int64_t>(1, groups) : job.options.training.steps;
  format->notes["decoder"] =
      decoder.width == 0 ? Linear(TuningPasses(job.options), job.options.passages.rank, outcome)
                         : absl::StrFormat("MLP of width %d, %d steps of %d tokens, seed %d", decoder.width,
                                           steps, job.options.training.batch, job.options.training.seed);
  return absl::OkStatus();
}

// Takes along what the format holds for consumers that are not the job's, less what shares a decoder that the job
// replaces: nothing was measured of it by the new one.
absl::Status KeepOtherDecoders(const ArtifactManifest& old, const ArtifactFormat& old_format,
                               const ModelHashes& models, ArtifactFormat* format, ArtifactWriter* writer) {
  const auto replaced = [&](const ArtifactDecoder& decoder) {
    return absl::c_linear_search(models.consumers, decoder.consumer_hash);
  };
  for (const ArtifactDecoder& decoder : old_format.decoders) {
    if (replaced(decoder)) continue;
    const ArtifactDecoder* const owner = SharedWith(old_format.decoders, decoder);
    if (owner != nullptr && replaced(*owner)) {
      PrintLine(absl::StrCat("format ", old_format.name, ": ", decoder.consumer,
                             " has no decoder any more, as it shared one that is replaced: see --share"));
      continue;
    }
    ALUDEL_RETURN_IF_ERROR(writer->Keep(old, decoder.file));
    format->decoders.push_back(decoder);
  }
  return absl::OkStatus();
}

absl::Status AddDecoders(const AludelJob& job, const ModelHashes& models, const AludelCandidate& chosen,
                         ArtifactFormat* format, ArtifactWriter* writer) {
  for (size_t c = 0; c < models.consumers.size(); ++c) {
    const HandoffProbe::Result& measured = chosen.measured[c];
    ArtifactDecoder entry{ModelName(job.base.consumers[c]),
                          models.consumers[c],
                          {},
                          ExpectedLoss{measured.kl, measured.bytes_per_token}};
    ALUDEL_ASSIGN_OR_RETURN(entry.file,
                            writer->AddDecoder(format->name, entry.consumer, chosen.decoders[c].weights));
    format->decoders.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

}  // namespace

std::string FormatName(const AludelJob& job, int recomputed_layers) {
  return job.format.empty() ? absl::StrCat("aludel-p", std::max(0, recomputed_layers)) : job.format;
}

absl::StatusOr<OldFormat> LoadOldFormat(const AludelJob& job, const std::optional<ArtifactManifest>& old,
                                        const std::string& name, const ModelHashes& models,
                                        const ModelConfig& config) {
  if (!old.has_value()) {
    return absl::NotFoundError(absl::StrCat(job.base.out, " holds no artifact to extend"));
  }
  ALUDEL_RETURN_IF_ERROR(CheckProducer(*old, models.producer));
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactFormat* format, old->Find(name));
  if (format->kind != ArtifactKind::kAludel) {
    return absl::FailedPreconditionError(absl::StrCat("format \"", name, "\" is of another preset"));
  }
  OldFormat found{.shape = format->aludel};
  found.shape.range.reset();  // what is measured is to be seen whatever its codes
  ALUDEL_ASSIGN_OR_RETURN(found.encoder, LoadAludelEncoder(*old, *format, config.kv_dim(), config.hidden));
  if (!format->decoders.empty()) {
    // What the encoder's latents leave to side information is the same for all of its consumers.
    ALUDEL_ASSIGN_OR_RETURN(
        AludelDecoderWeights any,
        LoadAludelDecoder(*old, *format, format->decoders.front(), config.kv_dim(), config.hidden));
    found.side = std::move(any.side);
  }
  if (!job.retune) return found;
  for (const std::string& consumer : models.consumers) {
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* entry,
                            FindDecoder(*old, format->name, format->decoders, consumer));
    ALUDEL_ASSIGN_OR_RETURN(AludelDecoderWeights weights,
                            LoadAludelDecoder(*old, *format, *entry, config.kv_dim(), config.hidden));
    found.decoders.push_back(std::move(weights));
  }
  return found;
}

absl::StatusOr<std::string> SaveFormat(const AludelJob& job, const std::optional<ArtifactManifest>& old,
                                       const ModelHashes& models, const AludelOutcome& outcome) {
  ALUDEL_ASSIGN_OR_RETURN(ArtifactWriter writer, ArtifactWriter::Begin(job.base.out, job.base.storage));
  ArtifactManifest manifest;
  manifest.producer = ModelName(job.base.producer);
  manifest.producer_hash = models.producer;
  ArtifactFormat format;
  format.name = FormatName(job, outcome.chosen.shape.recomputed_layers);
  const std::string name = format.name;
  // A new format stands first: servers offer it before the others.
  size_t place = 0;
  const ArtifactFormat* replaced = nullptr;
  if (old.has_value()) {
    ALUDEL_RETURN_IF_ERROR(KeepFormats(*old, {name}, /*replace_controls=*/false, &writer, &manifest));
    for (size_t i = 0; i < old->formats.size(); ++i) {
      if (old->formats[i].name != name) continue;
      place = i;
      replaced = &old->formats[i];
    }
  }
  const ArtifactFormat* const extended = Extends(job) ? replaced : nullptr;
  format.kind = ArtifactKind::kAludel;
  format.aludel = outcome.chosen.shape;
  // Of an extended format: what its encoder has met so far is no stranger, and neither is this job's text.
  format.aludel.range = outcome.chosen.range;
  if (extended != nullptr && extended->aludel.range.has_value()) {
    format.aludel.range = Union(outcome.chosen.range, *extended->aludel.range);
  }
  ALUDEL_RETURN_IF_ERROR(FillNotes(job, extended, outcome, &format));
  if (extended == nullptr) {
    ALUDEL_ASSIGN_OR_RETURN(format.encoder, writer.AddEncoder(name, outcome.chosen.encoder));
  } else {
    // Its very bytes, by whose hash frames are known: written anew, equal numbers may be another file.
    ALUDEL_RETURN_IF_ERROR(writer.Keep(*old, extended->encoder));
    format.encoder = extended->encoder;
    ALUDEL_RETURN_IF_ERROR(KeepOtherDecoders(*old, *extended, models, &format, &writer));
  }
  ALUDEL_RETURN_IF_ERROR(AddDecoders(job, models, outcome.chosen, &format, &writer));
  manifest.formats.insert(manifest.formats.begin() + static_cast<int64_t>(place), std::move(format));
  ALUDEL_RETURN_IF_ERROR(writer.Publish(manifest));
  return name;
}

}  // namespace aludel
