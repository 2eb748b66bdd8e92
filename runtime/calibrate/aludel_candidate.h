#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/calibrate/aludel/latent_spectrum.h"
#include "runtime/calibrate/handoff_probe.h"
#include "runtime/calibrate/trained_decoder.h"
#include "runtime/calibrate/tune_aludel.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

struct FittedDecoder {
  AludelDecoderWeights weights;
  std::vector<double> train_error, held_out_error;  // [groups]; empty where it was not trained here
  int64_t width = 0;
  std::optional<TuningResult> tuned;
  std::vector<LayerLoss> layers;  // before tuning; empty where it was not trained here
  int64_t steps = 0;              // of training a network
  int64_t cut_from = 0;           // see TrainedDecoder
};

// One structure at one rate, fitted.
struct AludelCandidate {
  AludelShape shape;
  AludelEncoderWeights encoder;
  std::vector<FittedDecoder> decoders;         // [consumers]
  std::vector<HandoffProbe::Result> measured;  // [consumers]
  CodeRange range;                             // of held-out prompts
  std::vector<LatentSpectrum> spectra;         // [groups]; empty where the encoder was there before

  // Of the worst consumer. The bound is what a promise needs: the mean over some held-out prompts is as
  // often too small as too large.
  double kl() const { return Worst(&HandoffProbe::Result::kl); }
  double kl_bound() const { return Worst(&HandoffProbe::Result::kl_bound); }
  double Worst(double HandoffProbe::Result::*figure) const;
  double bytes() const { return measured.empty() ? 0 : measured.front().bytes_per_token; }

  // A line about decoders[consumer], which is called `name`; `raw_bytes` of a token's raw cache.
  std::string Describe(size_t consumer, const std::string& name, double raw_bytes) const;
};

}  // namespace aludel
