#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/calibrate/scd/select_layers.h"
#include "runtime/calibrate/scd/train_aligner.h"
#include "runtime/codec/scd/weights.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Calibration of semantic cache distillation as published (Ma et al., ICML 2026): Reuse by joint SVD with a
// ridge encoder and separate ranks for K and V, Patch by an MLP aligner, layers chosen greedily.

struct ScdOptions {
  // Ranks as fractions of kv_dim (K, V) and of the hidden width (H).
  double rank_k = 0.5;
  double rank_v = 0.5;
  double rank_h = 0.5;
  int max_patch = 0;  // 0: the published six, fewer where the model is shallow (PublishedPatchLayers)
  // Stop at the argmax of the efficiency curve instead of taking all max_patch layers.
  bool stop_at_most_efficient = false;
  double ridge = 1e-5;
  int max_answer_tokens = 24;
  StatisticsOptions statistics;
  AlignerTraining aligner;
};

// Six of Mistral's 32 layers; at most 3/8 of a shallower model.
int PublishedPatchLayers(int layers);

// Latents for a fraction of `dim`: at least 1, at most dim.
int64_t RankOf(double fraction, int64_t dim);

// Errors of one layer's fits, as fractions of the energy of what they approximate.
struct ScdLayerErrors {
  double joint_k = 0;  // joint SVD's own cut-off energy over [A B]
  double joint_v = 0;
  double linear_h = 0;   // held-out: linear map of H
  double aligned_h = 0;  // held-out: aligner
};

struct ScdCalibration {
  ScdCandidates candidates;  // patch halves of the first consumer for every layer, of others for patched ones
  PatchSelection selection;
  std::vector<bool> patched;  // [layers] the chosen Patch layers
  std::vector<ScdLayerErrors> errors;
};

// Fits the encoder and the first consumer's decoder, and chooses the Patch layers.
absl::StatusOr<ScdCalibration> CalibrateScd(Transformer& producer, Transformer& consumer,
                                            const CalibrationPrompts& prompts, const ScdOptions& options,
                                            const CalibrationProgress& progress);

// A further consumer of encoders that stay as they are: ridge decoders from the codes to its K and V for
// every layer, aligners for `patched` layers.
struct ScdConsumerFit {
  ScdDecoderWeights reuse_decoder;  // [layers]
  ScdDecoderWeights patch_decoder;  // [layers] patched layers only; others are empty
};
absl::StatusOr<ScdConsumerFit> FitScdConsumer(Transformer& producer, Transformer& consumer,
                                              const CalibrationPrompts& prompts,
                                              const ScdEncoderWeights& reuse_encoder,
                                              const ScdEncoderWeights& patch_encoder,
                                              const std::vector<bool>& patched, const ScdOptions& options,
                                              const CalibrationProgress& progress);

// Takes `patch` where patched, `reuse` elsewhere.
template <typename Layer>
std::vector<Layer> Compose(const std::vector<Layer>& reuse, const std::vector<Layer>& patch,
                           const std::vector<bool>& patched) {
  std::vector<Layer> layers = reuse;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (patched[i]) layers[i] = patch[i];
  }
  return layers;
}

}  // namespace aludel
