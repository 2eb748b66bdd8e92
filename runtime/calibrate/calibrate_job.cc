#include "runtime/calibrate/calibrate_job.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/scd/fit_control.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/codec/artifact/weight_file.h"
#include "runtime/codec/scd/control.h"
#include "runtime/status_macros.h"
#include "runtime/tool/progress.h"

namespace aludel {
namespace {

constexpr char kScdFormat[] = "scd";
constexpr char kReuseOnly[] = "reuse-only";

using Notes = std::map<std::string, std::string>;

struct Consumer {
  std::string name;
  std::string hash;
  ScdDecoderWeights scd, reuse_only;
  std::vector<ControlWeights> controls;
};

// Both models and what the calibration of one pair holds at its peak.
absl::StatusOr<size_t> EstimateBytes(const CalibrateJob& job, const ModelConfig& config,
                                     const CalibrationPrompts& prompts) {
  size_t models = 0;
  for (const std::string& directory : {job.producer, job.consumers.front()}) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(ModelPath::Parse(directory).base, error)) {
      if (entry.path().extension() == ".safetensors") models += entry.file_size(error);
    }
    if (error) return absl::NotFoundError(absl::StrCat(directory, ": ", error.message()));
  }
  if (job.compute == DType::kF32) models *= 2;                                       // checkpoints are bf16
  const size_t code_bytes = 2 * 2 * config.kv_dim() * config.layers * sizeof(Bf16);  // both ways of a layer
  const size_t trials = TokenCount(prompts.held_out) * code_bytes +
                        prompts.held_out.size() * job.scd.max_answer_tokens * config.vocab * sizeof(float);
  const size_t training =
      6 * static_cast<size_t>(job.scd.statistics.sample_tokens) * config.hidden * sizeof(float);
  return models + StatisticsBytes(config, job.scd.statistics) + std::max(trials, training);
}

Notes MakeNotes(const CalibrateJob& job, const CalibrationPrompts& prompts, const std::string& data_note) {
  const ScdOptions& scd = job.scd;
  return {{"data", data_note},
          {"prompts", absl::StrFormat("%d fitted (%d tokens), %d held out", prompts.train.size(),
                                      TokenCount(prompts.train), prompts.held_out.size())},
          {"compute", Name(job.compute)},
          {"ridge", absl::StrCat(scd.ridge)},
          {"aligner", absl::StrFormat("gated MLP of width %d, %d epochs over %d tokens, seed %d",
                                      scd.aligner.width, scd.aligner.epochs,
                                      std::min(scd.statistics.sample_tokens, TokenCount(prompts.train)),
                                      scd.aligner.seed)}};
}

void PrintSelection(const ScdCalibration& calibration, Notes* notes) {
  const PatchSelection& selection = calibration.selection;
  PrintLine("\nlayer  joint K err  joint V err  H linear  H aligned  gain alone (KL)  mode");
  for (size_t l = 0; l < calibration.patched.size(); ++l) {
    const ScdLayerErrors& e = calibration.errors[l];
    PrintLine(absl::StrFormat("%5d  %10.2f%%  %10.2f%%  %7.2f%%  %8.2f%%  %15.4f  %s", l, 100 * e.joint_k,
                              100 * e.joint_v, 100 * e.linear_h, 100 * e.aligned_h, selection.sensitivity[l],
                              calibration.patched[l] ? "patch" : "reuse"));
  }
  std::string curve = absl::StrFormat("k=0 KL %.4f", selection.reuse_kl);
  for (size_t k = 1; k <= selection.kl.size(); ++k) {
    absl::StrAppendFormat(&curve, "; k=%d (+layer %d) KL %.4f, gain/k %.4f", k, selection.order[k - 1],
                          selection.kl[k - 1], selection.Gain(k) / static_cast<double>(k));
  }
  PrintLine(absl::StrCat("greedy accumulation on held-out prompts: ", curve));
  PrintLine(absl::StrFormat("most efficient k by gain(S_k) / (cost k): %d", selection.MostEfficient()));
  (*notes)["selection"] = curve;
}

std::vector<ArtifactLayer> ShapeOf(const ScdEncoderWeights& encoder) {
  std::vector<ArtifactLayer> layers;
  for (const ScdEncoderLayer& layer : encoder) {
    layers.push_back({layer.mode, layer.k.rows, layer.v.rows, layer.h.rows});
  }
  return layers;
}

// The state of one run; its steps in order.
class Calibration {
 public:
  Calibration(const CalibrateJob& job, Device* device) : job_(job), device_(device) {}

  absl::Status Run() {
    ALUDEL_RETURN_IF_ERROR(Prepare());
    size_t next = 0;
    if (job_.add) {
      ALUDEL_RETURN_IF_ERROR(LoadExisting());
    } else {
      ALUDEL_RETURN_IF_ERROR(FitFirst(job_.consumers[next++]));
    }
    for (; next < job_.consumers.size(); ++next) ALUDEL_RETURN_IF_ERROR(FitFurther(job_.consumers[next]));
    return Save();
  }

 private:
  absl::Status Prepare() {
    ALUDEL_ASSIGN_OR_RETURN(const ModelConfig config, CheckPairs(job_));
    ALUDEL_ASSIGN_OR_RETURN(prompts_, LoadCalibrationPrompts(job_, config));
    ALUDEL_ASSIGN_OR_RETURN(producer_, LoadForCalibration(job_, device_, job_.producer));
    ALUDEL_ASSIGN_OR_RETURN(const size_t bytes, EstimateBytes(job_, producer_->config(), prompts_));
    ALUDEL_ASSIGN_OR_RETURN(const std::string data_note, DescribeData(job_.data));
    notes_ = MakeNotes(job_, prompts_, data_note);
    PrintLine(absl::StrFormat("producer %s, %s %s; %d prompts, %d tokens; memory at peak about %s",
                              job_.producer, job_.consumers.size() == 1 ? "consumer" : "consumers",
                              absl::StrJoin(job_.consumers, ", "),
                              prompts_.train.size() + prompts_.held_out.size(),
                              TokenCount(prompts_.train) + TokenCount(prompts_.held_out), MiB(bytes)));
    const int64_t unknowns = 2 * producer_->config().hidden;
    if (TokenCount(prompts_.train) < 20 * unknowns) {
      PrintLine(
          absl::StrFormat("warning: %d tokens to fit maps of %d inputs; want at least %d, use more text",
                          TokenCount(prompts_.train), unknowns, 20 * unknowns));
    }
    std::fflush(stdout);
    return absl::OkStatus();
  }

  CalibrationProgress Progress() {
    return [this](absl::string_view stage, int64_t done, int64_t total) {
      if (!stage.empty()) bar_.Update(stage, done, total);
      return !StopAsked();
    };
  }

  absl::Status FitFirst(const std::string& directory) {
    ALUDEL_ASSIGN_OR_RETURN(const auto consumer, LoadForCalibration(job_, device_, directory));
    ALUDEL_ASSIGN_OR_RETURN(ScdCalibration fit,
                            CalibrateScd(*producer_, *consumer, prompts_, job_.scd, Progress()));
    bar_.Break();
    scd_notes_ = notes_;
    PrintSelection(fit, &scd_notes_);
    const ScdCandidates& c = fit.candidates;
    scd_encoder_ = Compose(c.reuse_encoder, c.patch_encoder, fit.patched);
    Consumer entry{ModelName(directory),
                   consumer->hash(),
                   Compose(c.reuse_decoder, c.patch_decoder, fit.patched),
                   c.reuse_decoder,
                   {}};
    ALUDEL_ASSIGN_OR_RETURN(entry.controls, Controls(*consumer));
    consumers_.push_back(std::move(entry));
    reuse_encoder_ = std::move(fit.candidates.reuse_encoder);
    return absl::OkStatus();
  }

  absl::Status FitFurther(const std::string& directory) {
    ALUDEL_ASSIGN_OR_RETURN(const auto consumer, LoadForCalibration(job_, device_, directory));
    std::vector<bool> patched;
    for (const ScdEncoderLayer& layer : scd_encoder_) patched.push_back(layer.mode == ScdMode::kPatch);
    ALUDEL_ASSIGN_OR_RETURN(ScdConsumerFit fit,
                            FitScdConsumer(*producer_, *consumer, prompts_, reuse_encoder_, scd_encoder_,
                                           patched, job_.scd, Progress()));
    bar_.Break();
    Consumer entry{ModelName(directory),
                   consumer->hash(),
                   Compose(fit.reuse_decoder, fit.patch_decoder, patched),
                   fit.reuse_decoder,
                   {}};
    ALUDEL_ASSIGN_OR_RETURN(entry.controls, Controls(*consumer));
    const auto same = [&entry](const Consumer& c) { return c.name == entry.name; };
    consumers_.erase(std::remove_if(consumers_.begin(), consumers_.end(), same), consumers_.end());
    consumers_.push_back(std::move(entry));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<ControlWeights>> Controls(Transformer& consumer) {
    const int most = std::min(job_.max_control, consumer.config().layers - 1);
    auto controls = FitControls(consumer, prompts_.train, most, job_.scd.ridge, Progress());
    bar_.Break();
    return controls;
  }

  // Encoders and decoders of the artifact that is being extended.
  absl::Status LoadExisting() {
    const ModelConfig& config = producer_->config();
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactManifest manifest, LoadArtifactManifest(job_.out));
    ALUDEL_RETURN_IF_ERROR(CheckProducer(manifest, producer_->hash()));
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactFormat* scd, manifest.Find(kScdFormat));
    ALUDEL_ASSIGN_OR_RETURN(const ArtifactFormat* reuse, manifest.Find(kReuseOnly));
    ALUDEL_ASSIGN_OR_RETURN(scd_encoder_, LoadScdEncoder(manifest, *scd, config.kv_dim(), config.hidden));
    ALUDEL_ASSIGN_OR_RETURN(reuse_encoder_, LoadScdEncoder(manifest, *reuse, config.kv_dim(), config.hidden));
    scd_notes_ = scd->notes;
    notes_ = reuse->notes;
    for (const ArtifactDecoder& decoder : scd->decoders) {
      Consumer consumer{decoder.consumer, decoder.consumer_hash, {}, {}, {}};
      ALUDEL_ASSIGN_OR_RETURN(consumer.scd,
                              LoadScdDecoder(manifest, *scd, decoder, config.kv_dim(), config.hidden));
      ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* other,
                              FindDecoder(manifest, reuse->name, reuse->decoders, decoder.consumer_hash));
      ALUDEL_ASSIGN_OR_RETURN(consumer.reuse_only,
                              LoadScdDecoder(manifest, *reuse, *other, config.kv_dim(), config.hidden));
      for (const ArtifactControl& control : manifest.controls) {
        ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* file,
                                FindDecoder(manifest, control.name, control.decoders, decoder.consumer_hash));
        ALUDEL_ASSIGN_OR_RETURN(ControlWeights weights,
                                LoadControl(manifest, control, *file, config.kv_dim(), config.hidden));
        consumer.controls.push_back(std::move(weights));
      }
      consumers_.push_back(std::move(consumer));
    }
    if (manifest.controls.size() != static_cast<size_t>(job_.max_control) + 1) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s holds controls for 0 to %d recomputed layers, --max-control is %d", job_.out,
                          static_cast<int>(manifest.controls.size()) - 1, job_.max_control));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ArtifactFormat> AddFormat(const char* name, const ScdEncoderWeights& encoder,
                                           ScdDecoderWeights Consumer::*decoder, const Notes& notes,
                                           ArtifactWriter* writer) {
    ArtifactFormat format;
    format.name = name;
    format.layers = ShapeOf(encoder);
    format.notes = notes;
    ALUDEL_ASSIGN_OR_RETURN(format.encoder, writer->AddEncoder(name, encoder));
    for (const Consumer& consumer : consumers_) {
      ArtifactDecoder entry{consumer.name, consumer.hash, {}};
      ALUDEL_ASSIGN_OR_RETURN(entry.file, writer->AddDecoder(name, consumer.name, consumer.*decoder));
      format.decoders.push_back(std::move(entry));
    }
    return format;
  }

  absl::Status AddControls(ArtifactManifest* manifest, ArtifactWriter* writer) {
    for (size_t p = 0; p < consumers_.front().controls.size(); ++p) {
      ArtifactControl control;
      control.name = absl::StrCat("control-p", p);
      control.recomputed_layers = static_cast<int>(p);
      control.layers = producer_->config().layers;
      for (const Consumer& consumer : consumers_) {
        ArtifactDecoder entry{consumer.name, consumer.hash, {}};
        ALUDEL_ASSIGN_OR_RETURN(entry.file,
                                writer->AddControl(control.name, consumer.name, consumer.controls[p]));
        control.decoders.push_back(std::move(entry));
      }
      manifest->controls.push_back(std::move(control));
    }
    return absl::OkStatus();
  }

  absl::Status Save() {
    if (StopAsked()) return absl::CancelledError("calibration was interrupted");
    ALUDEL_ASSIGN_OR_RETURN(ArtifactWriter writer, ArtifactWriter::Begin(job_.out, job_.storage));
    ArtifactManifest manifest;
    manifest.producer = ModelName(job_.producer);
    manifest.producer_hash = producer_->hash();
    ALUDEL_ASSIGN_OR_RETURN(ArtifactFormat scd,
                            AddFormat(kScdFormat, scd_encoder_, &Consumer::scd, scd_notes_, &writer));
    ALUDEL_ASSIGN_OR_RETURN(ArtifactFormat reuse,
                            AddFormat(kReuseOnly, reuse_encoder_, &Consumer::reuse_only, notes_, &writer));
    ALUDEL_ASSIGN_OR_RETURN(const auto old, FindArtifact(job_.out));
    if (old.has_value()) {
      ALUDEL_RETURN_IF_ERROR(
          KeepFormats(*old, {kScdFormat, kReuseOnly}, /*replace_controls=*/true, &writer, &manifest));
    }
    manifest.formats.push_back(std::move(scd));  // behind those of the default preset
    manifest.formats.push_back(std::move(reuse));
    ALUDEL_RETURN_IF_ERROR(AddControls(&manifest, &writer));
    ALUDEL_RETURN_IF_ERROR(writer.Publish(manifest));
    PrintLine(absl::StrFormat("wrote %s: formats %s, %s, each with decoders for %d consumer%s", job_.out,
                              kScdFormat, kReuseOnly, consumers_.size(), consumers_.size() == 1 ? "" : "s"));
    return absl::OkStatus();
  }

  const CalibrateJob& job_;
  Device* device_;
  ProgressBar bar_;
  std::unique_ptr<Transformer> producer_;
  CalibrationPrompts prompts_;
  Notes notes_, scd_notes_;
  ScdEncoderWeights scd_encoder_, reuse_encoder_;
  std::vector<Consumer> consumers_;
};

}  // namespace

absl::Status RunCalibrateJob(const CalibrateJob& job, Device* device) {
  return Calibration(job, device).Run();
}

}  // namespace aludel
