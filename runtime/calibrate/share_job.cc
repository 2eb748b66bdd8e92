#include "runtime/calibrate/share_job.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/calibrate/calibration_setup.h"
#include "runtime/calibrate/handoff_probe.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "runtime/codec/open_codec.h"
#include "runtime/model/weights/weight_stream.h"
#include "runtime/status_macros.h"
#include "runtime/tool/progress.h"

namespace aludel {
namespace {

// The adapter's entry becomes one of the base's file.
void Share(const ArtifactDecoder& of_base, const std::string& consumer, const std::string& hash,
           const HandoffProbe::Result& measured, ArtifactFormat* format) {
  ArtifactDecoder entry{consumer, hash, of_base.file, ExpectedLoss{measured.kl, measured.bytes_per_token}};
  auto& decoders = format->decoders;
  decoders.erase(std::remove_if(decoders.begin(), decoders.end(),
                                [&](const ArtifactDecoder& one) { return one.consumer_hash == hash; }),
                 decoders.end());
  decoders.push_back(std::move(entry));
}

// What one adapter loses, format by format.
class Sharer {
 public:
  Sharer(const AludelJob& job, Device* device, ArtifactManifest* manifest)
      : job_(job), device_(device), manifest_(manifest) {}

  absl::Status Try(Transformer& producer, const CalibrationPrompts& prompts, const std::string& consumer);

  int shared() const { return shared_; }
  // The least bound that was found; nothing where there was no format to look at.
  std::optional<double> least() const { return least_; }

 private:
  absl::Status TryFormat(Transformer& producer, const Transformer& adapted, HandoffProbe& probe,
                         const std::string& consumer, const std::string& base_hash, ArtifactFormat* format);

  const AludelJob& job_;
  Device* const device_;
  ArtifactManifest* const manifest_;
  int shared_ = 0;
  std::optional<double> least_;
};

absl::Status Sharer::Try(Transformer& producer, const CalibrationPrompts& prompts,
                         const std::string& consumer) {
  const ModelPath path = ModelPath::Parse(consumer);
  if (path.adapter.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--share is for adapters: --consumer is ", consumer, ", want BASE+ADAPTER"));
  }
  ALUDEL_ASSIGN_OR_RETURN(const std::string base_hash, HashModel(path.base));
  ALUDEL_ASSIGN_OR_RETURN(const auto adapted, LoadForCalibration(job_.base, device_, consumer));
  ALUDEL_ASSIGN_OR_RETURN(
      const auto probe,
      HandoffProbe::Create(producer, *adapted, prompts.held_out, job_.base.scd.max_answer_tokens,
                           [](absl::string_view, int64_t, int64_t) { return !StopAsked(); }));
  for (ArtifactFormat& format : manifest_->formats) {
    if (format.kind != ArtifactKind::kAludel) continue;
    if (!job_.format.empty() && format.name != job_.format) continue;
    ALUDEL_RETURN_IF_ERROR(TryFormat(producer, *adapted, *probe, consumer, base_hash, &format));
  }
  return absl::OkStatus();
}

absl::Status Sharer::TryFormat(Transformer& producer, const Transformer& adapted, HandoffProbe& probe,
                               const std::string& consumer, const std::string& base_hash,
                               ArtifactFormat* format) {
  ALUDEL_ASSIGN_OR_RETURN(const ArtifactDecoder* found,
                          FindDecoder(*manifest_, format->name, format->decoders, base_hash));
  const ArtifactDecoder of_base = *found;
  const ModelConfig& config = adapted.config();
  ALUDEL_ASSIGN_OR_RETURN(const AludelDecoderWeights weights,
                          LoadAludelDecoder(*manifest_, *format, of_base, config.kv_dim(), config.hidden));
  ALUDEL_ASSIGN_OR_RETURN(const auto encoder, OpenEncoders(format->name, manifest_->directory, producer));
  AludelShape shape = format->aludel;
  shape.range.reset();  // its loss is to be seen whatever the codes
  ALUDEL_ASSIGN_OR_RETURN(const auto decoder, MakeAludelDecoders(format->name, format->encoder.sha256,
                                                                 std::move(shape), weights, adapted));
  ALUDEL_ASSIGN_OR_RETURN(const HandoffProbe::Result measured, probe.Measure(*encoder, *decoder));
  const bool within = measured.kl_bound <= *job_.max_kl;
  PrintLine(absl::StrFormat(
      "format %s, %s by the decoder of %s: KL %.4f (95 %% interval up to %.4f), which may be up to %g: %s",
      format->name, ModelName(consumer), of_base.consumer, measured.kl, measured.kl_bound, *job_.max_kl,
      within ? "shared" : "not shared"));
  least_ = std::min(measured.kl_bound, least_.value_or(measured.kl_bound));
  if (!within) return absl::OkStatus();
  ++shared_;
  Share(of_base, ModelName(consumer), adapted.hash(), measured, format);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunShareJob(const AludelJob& job, Device* device) {
  ALUDEL_ASSIGN_OR_RETURN(ArtifactManifest manifest, LoadArtifactManifest(job.base.out));
  ALUDEL_ASSIGN_OR_RETURN(const auto producer, LoadForCalibration(job.base, device, job.base.producer));
  ALUDEL_RETURN_IF_ERROR(CheckProducer(manifest, producer->hash()));
  ALUDEL_ASSIGN_OR_RETURN(const CalibrationPrompts prompts,
                          LoadCalibrationPrompts(job.base, producer->config()));
  Sharer sharer(job, device, &manifest);
  for (const std::string& consumer : job.base.consumers) {
    ALUDEL_RETURN_IF_ERROR(sharer.Try(*producer, prompts, consumer));
  }
  if (!sharer.least().has_value()) return manifest.Find(job.format).status();
  if (sharer.shared() == 0) {
    return absl::OutOfRangeError(
        absl::StrFormat("--max-kl is %g, and by the decoder of its base no adapter's 95 %% interval of the "
                        "loss ends below %.4f: "
                        "fit it one of its own (--add)",
                        *job.max_kl, *sharer.least()));
  }
  ALUDEL_ASSIGN_OR_RETURN(ArtifactWriter writer, ArtifactWriter::Begin(job.base.out, job.base.storage));
  ArtifactManifest kept;
  kept.producer = manifest.producer;
  kept.producer_hash = manifest.producer_hash;
  ALUDEL_RETURN_IF_ERROR(KeepFormats(manifest, {}, /*replace_controls=*/false, &writer, &kept));
  ALUDEL_RETURN_IF_ERROR(writer.Publish(kept));
  PrintLine(
      absl::StrFormat("wrote %s: %d decoders of bases shared with adapters", job.base.out, sharer.shared()));
  return absl::OkStatus();
}

}  // namespace aludel
