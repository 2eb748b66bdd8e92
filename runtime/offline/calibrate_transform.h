#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/codec/scd/statistics.h"
#include "runtime/codec/transform/fit_encoder.h"
#include "runtime/codec/transform/sensitivity.h"
#include "runtime/codec/transform/state_file.h"
#include "runtime/codec/transform/train_decoder.h"
#include "runtime/codec/transform/tune_decoder.h"
#include "runtime/codec/transform/weights.h"
#include "runtime/model/transformer.h"
#include "runtime/offline/trained_decoder.h"

namespace aludel {

// Calibration of the preset `aludel` (transform/weights.h) for one structure and one rate.

// Whose cache the encoder's latents shall tell about: the consumers' (reduced-rank regression), or the
// producer's own (principal components), which needs no consumer and spends rank on what none of them uses.
enum class EncoderSource : uint8_t { kConsumers, kProducer };
// One step for all latents on the metric's common scale, so that bits follow energy; or four bits each.
enum class BitAllocation : uint8_t { kWaterFilling, kUniform };

struct TransformOptions {
  int native_layers = 0;
  int group_layers = 0;  // layers regressed together; 0: as many as keep a group within kMaxGroupColumns
  // Of the consumer's prefill that encoding and decoding may cost together: bounds the rank and sets the
  // MLP's width. 0: see SensibleShare.
  double compute_share = 0;
  LatentPacking packing = LatentPacking::kDeflate;
  double sensitivity_blend = 0.2;  // see AddSensitivity
  EncoderOptions encoder;
  EncoderSource encoder_source = EncoderSource::kConsumers;
  BitAllocation allocation = BitAllocation::kWaterFilling;
  bool linear = false;       // closed-form decoders, without an MLP
  DecoderTraining training;  // width is set from compute_share
  DecoderTuning tuning;      // of MLPs, after their training
};

// Wider groups cost covariances that no host holds (8B, all layers: 17 GB each).
inline constexpr int64_t kMaxGroupColumns = 8192;

// Groups for layers native_layers + 1 and deeper.
std::vector<TransformGroup> MakeGroups(const ModelConfig& config, int native_layers, int group_layers);

// Calibration prompts seen by the producer and every consumer, as files.
struct TransformStates {
  std::unique_ptr<StateFile> producer;
  std::vector<std::unique_ptr<StateFile>> consumers;
  std::vector<int32_t> ids;  // of every row
  // Where an error hurts each consumer's answers, over `ranges` of columns; empty: not known, every layer and
  // token then counts the same.
  std::vector<Sensitivity> sensitivities;  // [consumers]
  std::vector<CacheColumns> ranges;
};

// How much each row counts in training: the mean sensitivity of its token id, drawn towards the mean of all
// where an id is rare, and bounded. Words that answers are read from outweigh filler.
std::vector<float> RowWeights(const std::vector<int32_t>& ids, const Sensitivity& sensitivity);

// The metric of one consumer's targets in a group.
absl::StatusOr<TargetMetric> MetricOf(const TransformStates& states, size_t consumer,
                                      const TransformGroup& group, const TransformOptions& options);

// Encoders of every group before they are cut to a rate, and the metric of every consumer's targets.
struct TransformAnalysis {
  std::vector<EncoderFit> encoders;                // [groups]
  std::vector<std::vector<TargetMetric>> metrics;  // [consumers][groups]
};
absl::StatusOr<TransformAnalysis> AnalyseTransform(const TransformStates& states, const ModelConfig& config,
                                                   const std::vector<TransformGroup>& groups,
                                                   const TransformOptions& options, double bytes_per_token,
                                                   const CalibrationProgress& progress);

// Cuts all groups by one step such that a frame of typical length takes `bytes_per_token`, headers included.
// `shape` gets the ranks.
TransformEncoderWeights QuantiseTo(double bytes_per_token, const TransformAnalysis& analysis,
                                   const StateFile& producer, TransformShape* shape);
TransformEncoderWeights QuantiseAt(float step, const TransformAnalysis& analysis, const StateFile& producer,
                                   TransformShape* shape);

// Mean payload and header bytes per token of frames of 256 tokens from calibration text.
double EstimateBytes(const TransformEncoderWeights& encoder, const TransformShape& shape,
                     const StateFile& producer);

// Mean and deviation of every group's decoder inputs, over the rows that decoders train on.
std::vector<InputScale> MeasureDecoderInputs(const TransformEncoderWeights& encoder,
                                             const TransformShape& shape, const StateFile& producer,
                                             const StateFile& consumer);

// The decoder of states.consumers[consumer] for quantised codes of `encoder`, trained under L2 loss. The last
// rows of the states, a tenth, are held out and measured.
absl::StatusOr<TrainedDecoder> TrainTransformDecoder(
    const TransformEncoderWeights& encoder, const TransformShape& shape, const TransformStates& states,
    size_t consumer, const std::vector<TargetMetric>& metrics, const ModelConfig& config,
    const TransformOptions& options, const CalibrationProgress& progress);

// Rows of the states that TrainTransformDecoder trains on.
inline int64_t TrainingRows(const StateFile& states) { return states.rows() - states.rows() / 10; }

// Tuning's view of it, and back.
std::vector<TunedGroup> ToTuned(const TransformShape& shape, const StateLayout& layout,
                                const std::vector<TargetMetric>& metrics, TrainedDecoder* decoder);
void FromTuned(std::vector<TunedGroup> groups, TrainedDecoder* decoder);

// Standardised decoder inputs from the states of both sides, which must live as long as they, like all that
// is passed.
std::vector<TuningText::Inputs> DecoderInputs(const TransformEncoderWeights& encoder,
                                              const TransformShape& shape, const TrainedDecoder& decoder,
                                              const StateFile& producer, const StateFile& consumer);

}  // namespace aludel
