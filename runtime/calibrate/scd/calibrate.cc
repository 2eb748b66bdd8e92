#include "runtime/calibrate/scd/calibrate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/calibrate/fit/linear_fit.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

absl::Status CheckPair(const Transformer& producer, const Transformer& consumer) {
  const ModelConfig& a = producer.config();
  const ModelConfig& b = consumer.config();
  if (a.layers == b.layers && a.kv_dim() == b.kv_dim() && a.hidden == b.hidden && a.vocab == b.vocab) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("producer has %d layers, kv_dim %d, hidden %d, vocab %d; consumer has %d, %d, %d, %d: "
                      "both must be fine-tunes of one architecture",
                      a.layers, a.kv_dim(), a.hidden, a.vocab, b.layers, b.kv_dim(), b.hidden, b.vocab));
}

// Codes of the sampled producer states, rounded as the wire rounds them, beside the consumer's states.
AlignerData MakeAlignerData(const StateSample& sample, const HostMatrix& encoder) {
  const int64_t hidden = encoder.cols;
  const int64_t rank = encoder.rows;
  AlignerData data;
  data.tokens = sample.tokens;
  data.z.resize(sample.tokens * rank);
  data.h.resize(sample.tokens * hidden);
  std::vector<float> wide(sample.producer.size());
  std::transform(sample.producer.begin(), sample.producer.end(), wide.begin(), ToFloat);
  std::transform(sample.consumer.begin(), sample.consumer.end(), data.h.begin(), ToFloat);
  Sgemm(false, true, sample.tokens, rank, hidden, wide.data(), hidden, encoder.values.data(), hidden, 0.0f,
        data.z.data(), rank);
  for (float& value : data.z) value = RoundToBf16(value);
  return data;
}

// The aligner of one layer, from codes by `encoder` [rank_h, hidden].
absl::StatusOr<AlignerWeights> FitPatch(const LayerStatistics& statistics, const HostMatrix& encoder,
                                        int layer, const ScdOptions& options,
                                        const CalibrationProgress& progress, ScdLayerErrors* errors) {
  const int64_t hidden = encoder.cols;
  const Moments aa = Block(statistics.h, 0, hidden, 0, hidden);
  const Moments ab = Block(statistics.h, 0, hidden, hidden, hidden);
  ALUDEL_ASSIGN_OR_RETURN(const HostMatrix linear,
                          FitRidge(ProjectBoth(encoder, aa), ProjectLeft(encoder, ab), options.ridge));
  AlignerTraining training = options.aligner;
  training.seed += static_cast<uint64_t>(layer);
  const AlignerData train = MakeAlignerData(statistics.train, encoder);
  const AlignerData held_out = MakeAlignerData(statistics.held_out, encoder);
  ALUDEL_ASSIGN_OR_RETURN(AlignerResult result, TrainAligner(train, held_out, linear, training,
                                                             [&] { return progress("", 0, 0); }));
  errors->linear_h = result.linear_error;
  errors->aligned_h = result.trained_error;
  return std::move(result.weights);
}

// Ridge from the codes of `encoder` [rank, dim] to the consumer's half of the joint moments.
absl::StatusOr<HostMatrix> FitDecoder(const Moments& joint, const HostMatrix& encoder, double ridge) {
  const int64_t dim = encoder.cols;
  const Moments aa = Block(joint, 0, dim, 0, dim);
  const Moments ab = Block(joint, 0, dim, dim, joint.cols - dim);
  return FitRidge(ProjectBoth(encoder, aa), ProjectLeft(encoder, ab), ridge);
}

absl::Status FitLayer(const LayerStatistics& statistics, int layer, int64_t kv_dim, int64_t hidden,
                      const ScdOptions& options, const CalibrationProgress& progress, ScdCandidates* out,
                      ScdLayerErrors* errors) {
  ALUDEL_ASSIGN_OR_RETURN(JointSvd k,
                          FitJointSvd(statistics.k, kv_dim, RankOf(options.rank_k, kv_dim), options.ridge));
  ALUDEL_ASSIGN_OR_RETURN(JointSvd v,
                          FitJointSvd(statistics.v, kv_dim, RankOf(options.rank_v, kv_dim), options.ridge));
  errors->joint_k = k.tail_energy / k.total_energy;
  errors->joint_v = v.tail_energy / v.total_energy;
  out->reuse_encoder[layer].k = std::move(k.encoder);
  out->reuse_encoder[layer].v = std::move(v.encoder);
  out->reuse_decoder[layer].k = std::move(k.decoder);
  out->reuse_decoder[layer].v = std::move(v.decoder);

  ScdEncoderLayer& patch = out->patch_encoder[layer];
  patch.mode = ScdMode::kPatch;
  ALUDEL_ASSIGN_OR_RETURN(patch.h, LeadingEigenvectors(Block(statistics.h, 0, hidden, 0, hidden),
                                                       RankOf(options.rank_h, hidden)));
  out->patch_decoder[layer].mode = ScdMode::kPatch;
  ALUDEL_ASSIGN_OR_RETURN(out->patch_decoder[layer].aligner,
                          FitPatch(statistics, patch.h, layer, options, progress, errors));
  return absl::OkStatus();
}

}  // namespace

int PublishedPatchLayers(int layers) { return std::clamp(layers * 3 / 8, 1, 6); }

int64_t RankOf(double fraction, int64_t dim) {
  return std::clamp<int64_t>(std::llround(fraction * static_cast<double>(dim)), 1, dim);
}

absl::StatusOr<ScdCalibration> CalibrateScd(Transformer& producer, Transformer& consumer,
                                            const CalibrationPrompts& prompts, const ScdOptions& options,
                                            const CalibrationProgress& progress) {
  ALUDEL_RETURN_IF_ERROR(CheckPair(producer, consumer));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<LayerStatistics> statistics,
                          CollectStatistics(producer, consumer, prompts, options.statistics, progress));
  const ModelConfig& config = producer.config();
  ScdCalibration calibration;
  calibration.errors.resize(config.layers);
  ScdCandidates& candidates = calibration.candidates;
  candidates.reuse_encoder.resize(config.layers);
  candidates.patch_encoder.resize(config.layers);
  candidates.reuse_decoder.resize(config.layers);
  candidates.patch_decoder.resize(config.layers);
  for (int layer = 0; layer < config.layers; ++layer) {
    if (!progress("fit layers and train aligners", layer, config.layers)) {
      return absl::CancelledError("calibration was interrupted");
    }
    ALUDEL_RETURN_IF_ERROR(FitLayer(statistics[layer], layer, config.kv_dim(), config.hidden, options,
                                    progress, &candidates, &calibration.errors[layer]));
  }
  progress("fit layers and train aligners", config.layers, config.layers);

  const int max_patch = options.max_patch > 0 ? options.max_patch : PublishedPatchLayers(config.layers);
  ALUDEL_ASSIGN_OR_RETURN(calibration.selection,
                          SelectPatchLayers(producer, consumer, candidates, prompts.held_out, max_patch,
                                            options.max_answer_tokens, progress));
  const PatchSelection& selection = calibration.selection;
  const size_t chosen = options.stop_at_most_efficient ? selection.MostEfficient() : selection.order.size();
  calibration.patched.assign(config.layers, false);
  for (size_t i = 0; i < chosen; ++i) calibration.patched[selection.order[i]] = true;
  return calibration;
}

absl::StatusOr<ScdConsumerFit> FitScdConsumer(Transformer& producer, Transformer& consumer,
                                              const CalibrationPrompts& prompts,
                                              const ScdEncoderWeights& reuse_encoder,
                                              const ScdEncoderWeights& patch_encoder,
                                              const std::vector<bool>& patched, const ScdOptions& options,
                                              const CalibrationProgress& progress) {
  ALUDEL_RETURN_IF_ERROR(CheckPair(producer, consumer));
  ALUDEL_ASSIGN_OR_RETURN(const std::vector<LayerStatistics> statistics,
                          CollectStatistics(producer, consumer, prompts, options.statistics, progress));
  const int layers = producer.config().layers;
  ScdConsumerFit fit;
  fit.reuse_decoder.resize(layers);
  fit.patch_decoder.resize(layers);
  for (int layer = 0; layer < layers; ++layer) {
    if (!progress("fit this consumer's decoders", layer, layers)) {
      return absl::CancelledError("calibration was interrupted");
    }
    ALUDEL_ASSIGN_OR_RETURN(fit.reuse_decoder[layer].k,
                            FitDecoder(statistics[layer].k, reuse_encoder[layer].k, options.ridge));
    ALUDEL_ASSIGN_OR_RETURN(fit.reuse_decoder[layer].v,
                            FitDecoder(statistics[layer].v, reuse_encoder[layer].v, options.ridge));
    if (!patched[layer]) continue;
    ScdLayerErrors errors;
    fit.patch_decoder[layer].mode = ScdMode::kPatch;
    ALUDEL_ASSIGN_OR_RETURN(
        fit.patch_decoder[layer].aligner,
        FitPatch(statistics[layer], patch_encoder[layer].h, layer, options, progress, &errors));
  }
  progress("fit this consumer's decoders", layers, layers);
  return fit;
}

}  // namespace aludel
