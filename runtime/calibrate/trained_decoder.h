#pragma once

#include <cstdint>
#include <vector>

#include "runtime/calibrate/aludel/decoder_net.h"
#include "runtime/calibrate/aludel/metric.h"
#include "runtime/codec/aludel/weights.h"

namespace aludel {

// Mean and deviation of decoder inputs; folded into the first layer at the end.
struct InputScale {
  std::vector<float> mean, inverse;

  // To u [rows, inputs], in place.
  void Apply(int64_t rows, float* u) const;
};

// What is lost of a layer's K and V on held-out rows, over their variance; before tuning.
struct LayerLoss {
  int layer = 0;
  double k = 0, v = 0;
};

// A consumer's decoders on their way. The nets take standardized inputs and give (y - mean) / scale of the
// metrics, without their roots.
struct TrainedDecoder {
  HostMatrix side;               // S of weights.h
  std::vector<DecoderNet> nets;  // [groups], as all vectors here
  std::vector<InputScale> scales;
  std::vector<double> train_error, held_out_error;  // before tuning; empty where it was not trained here
  int64_t width = 0;
  std::vector<LayerLoss> layers;  // coded ones
  int64_t steps = 0;              // of all groups' training, 0 for linear ones
  int64_t cut_from = 0;           // as many as it was to take, where time cut it short; else 0
};

// What a consumer computes with.
AludelDecoderWeights FoldDecoder(TrainedDecoder decoder, const AludelEncoderWeights& encoder,
                                 const std::vector<TargetMetric>& metrics);

// The way back.
TrainedDecoder UnfoldDecoder(AludelDecoderWeights weights, std::vector<InputScale> scales,
                             const std::vector<TargetMetric>& metrics);

}  // namespace aludel
