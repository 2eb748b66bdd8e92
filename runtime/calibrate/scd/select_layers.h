#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/codec/scd/weights.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Both ways to ship every layer, fitted and not yet chosen between.
struct ScdCandidates {
  ScdEncoderWeights reuse_encoder, patch_encoder;
  ScdDecoderWeights reuse_decoder, patch_decoder;
};

// The published choice of Patch layers: gain of each layer patched alone (its sensitivity), then greedy
// accumulation. A gain is the fall of KL(oracle || reconstructed), mean over the oracle's answer tokens of
// held-out prompts, against all layers in Reuse.
struct PatchSelection {
  double reuse_kl = 0;              // no layer patched
  std::vector<double> sensitivity;  // [layers] gain of one layer alone
  std::vector<int> order;           // layers as greedy accumulation took them
  std::vector<double> kl;           // kl[k - 1] with the first k layers of `order` patched

  double Gain(size_t k) const { return reuse_kl - kl[k - 1]; }
  // argmax over k of gain(S_k) / (cost * k); every patched layer costs the same here, so the cost drops out.
  size_t MostEfficient() const;
};

// Accumulates up to `max_layers` layers. All codes are made once; each trial replays the frames of
// its choice.
absl::StatusOr<PatchSelection> SelectPatchLayers(Transformer& producer, Transformer& consumer,
                                                 const ScdCandidates& candidates,
                                                 const std::vector<std::vector<int32_t>>& prompts,
                                                 int max_layers, int max_answer_tokens,
                                                 const CalibrationProgress& progress);

}  // namespace aludel
