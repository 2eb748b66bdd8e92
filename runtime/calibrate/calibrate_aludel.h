#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/fit_encoder.h"
#include "runtime/calibrate/aludel/sensitivity.h"
#include "runtime/calibrate/aludel/state_file.h"
#include "runtime/calibrate/aludel/train_decoder.h"
#include "runtime/calibrate/aludel/tune_decoder.h"
#include "runtime/calibrate/aludel/tune_passages.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/calibrate/trained_decoder.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Calibration of the preset `aludel` (aludel/weights.h) for one structure and one rate.

// Whose cache the encoder's latents shall tell about: the consumers' (reduced-rank regression), or the
// producer's own (principal components), which needs no consumer and spends rank on what none of them uses.
enum class EncoderSource : uint8_t { kConsumers, kProducer };
// One step for all latents on the metric's common scale, so that bits follow energy; or four bits each.
enum class BitAllocation : uint8_t { kWaterFilling, kUniform };

// What is left of a time that the user gave: fits that turn out slower than was planned are shortened.
struct TimeLimit {
  double budget = 0;                     // all of it, in seconds; 0: as long as it takes
  std::function<double()> seconds_left;  // where there is a budget
  // As was predicted of one structure: training all its decoders, tuning them, and what follows.
  double training_seconds = 0;
  double tuning_seconds = 0;
  double rest_seconds = 0;
  double fits = 1;           // that a search is expected to take; 1: there is none
  double later_seconds = 0;  // as was predicted of those behind the one at hand

  double fit_seconds() const { return training_seconds + tuning_seconds + rest_seconds; }
  // For the stage at hand, with a limit: the rest and later fits get their part.
  double Left() const { return seconds_left() - rest_seconds - later_seconds; }
  bool Over() const { return seconds_left && Left() <= 0; }
};

struct AludelOptions {
  int recomputed_layers = 0;
  int group_layers = 0;  // layers regressed together; 0: as many as keep a group within kMaxGroupColumns
  // Of the consumer's prefill that encoding and decoding may cost together: bounds the rank and sets the
  // MLP's width. 0: see SensibleShare.
  double compute_share = 0;
  LatentPacking packing = LatentPacking::kRans;
  int planes = 4;         // with LatentPacking::kEmbedded
  int64_t side_rank = 0;  // directions of H that are side information, see FitSideDirections; 0: all of H
  double sensitivity_blend = 0.2;  // see AddSensitivity
  EncoderOptions encoder;
  EncoderSource encoder_source = EncoderSource::kConsumers;
  BitAllocation allocation = BitAllocation::kWaterFilling;
  bool linear = false;       // closed-form decoders, without an MLP
  DecoderTraining training;  // width is set from compute_share
  DecoderTuning tuning;      // after that
  PassageTuning passages;    // or that, for linear decoders and more prompts; rank 0: never
  // Rows that a decoder is fitted to, spread over all text: they lie in memory, in bf16. 0: all.
  int64_t training_tokens = 0;
  TimeLimit time;
  std::string checkpoints;  // a directory where training leaves what it is resumed from; "": nowhere
};

// Two for networks and for decoders that are there; none for linear ones of a new fit, which are made to be fast.
inline int64_t TuningPasses(const AludelOptions& options) {
  if (options.tuning.passes >= 0) return options.tuning.passes;
  return options.linear ? 0 : 2;
}

// Of side information, among the inputs of a new fit's decoders.
int64_t SideColumns(const ModelConfig& config, const AludelOptions& options);

// Wider groups cost covariances that no host holds (8B, all layers: 17 GB each).
inline constexpr int64_t kMaxGroupColumns = 8192;

// Groups for layers recomputed_layers + 1 and deeper.
std::vector<AludelGroup> MakeGroups(const ModelConfig& config, int recomputed_layers, int group_layers);

// Latents to fit at a rate, in all groups together no more than the compute share pays for; and the width that it pays
// for behind encoders of `shape`, 0 for a linear decoder.
int64_t MostRank(double bytes_per_token, const ModelConfig& config, const std::vector<AludelGroup>& groups,
                 const AludelOptions& options);
int64_t DecoderWidth(const AludelOptions& options, const ModelConfig& config, const AludelShape& shape);

// Calibration prompts seen by the producer and every consumer, as files.
struct AludelStates {
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
absl::StatusOr<TargetMetric> MetricOf(const AludelStates& states, size_t consumer, const AludelGroup& group,
                                      const AludelOptions& options);

// Of all consumers and groups.
absl::StatusOr<std::vector<std::vector<TargetMetric>>> MetricsOf(const AludelStates& states,
                                                                 const std::vector<AludelGroup>& groups,
                                                                 const AludelOptions& options);

// Encoders of every group before they are cut to a rate, and the metric of every consumer's targets.
struct AludelAnalysis {
  HostMatrix side;                                 // S of weights.h, empty: all of H
  std::vector<EncoderFit> encoders;                // [groups]
  std::vector<std::vector<double>> energies;       // [groups] of latents, not yet made equal by uniform bits
  std::vector<LatentSample> samples;               // [groups]
  std::vector<std::vector<TargetMetric>> metrics;  // [consumers][groups]
};
absl::StatusOr<AludelAnalysis> AnalyzeAludel(const AludelStates& states, const ModelConfig& config,
                                             const std::vector<AludelGroup>& groups,
                                             const AludelOptions& options, double bytes_per_token,
                                             const CalibrationProgress& progress);

// Cuts all groups by one step such that a frame of typical length takes `bytes_per_token`, headers included.
// `shape` gets the ranks; its planes become the grids'.
AludelEncoderWeights QuantizeTo(double bytes_per_token, const AludelAnalysis& analysis, AludelShape* shape);
AludelEncoderWeights QuantizeAt(float step, const AludelAnalysis& analysis, AludelShape* shape);

// Mean payload and header bytes per token of frames of typical length from calibration text. `samples` [groups]
// have at least the encoder's ranks.
double EstimateBytes(const AludelEncoderWeights& encoder, LatentPacking packing,
                     absl::Span<const LatentSample> samples);

// Mean and deviation of every group's decoder inputs, over the rows that decoders train on. `directions`: S of weights.h.
std::vector<InputScale> MeasureDecoderInputs(const AludelEncoderWeights& encoder, const AludelShape& shape,
                                             const HostMatrix& directions, const StateFile& producer,
                                             const StateFile& consumer);

// The decoder of states.consumers[consumer] for quantized codes of `encoder`, trained under L2 loss. The last
// rows of the states, a tenth, are held out and measured.
absl::StatusOr<TrainedDecoder> TrainAludelDecoder(const AludelEncoderWeights& encoder,
                                                  const AludelShape& shape, const AludelStates& states,
                                                  size_t consumer, const std::vector<TargetMetric>& metrics,
                                                  const HostMatrix& directions, const ModelConfig& config,
                                                  const AludelOptions& options,
                                                  const CalibrationProgress& progress);

// Rows of the states that TrainAludelDecoder trains on.
inline int64_t TrainingRows(const StateFile& states) { return states.rows() - states.rows() / 10; }

// Tuning's view of it, and back.
std::vector<TunedGroup> ToTuned(const AludelShape& shape, const StateLayout& layout,
                                const std::vector<TargetMetric>& metrics, TrainedDecoder* decoder);
void FromTuned(std::vector<TunedGroup> groups, TrainedDecoder* decoder);

// Standardized decoder inputs from the states of both sides, which must live as long as they, like all that
// is passed.
std::vector<TuningText::Inputs> DecoderInputs(const AludelEncoderWeights& encoder, const AludelShape& shape,
                                              const TrainedDecoder& decoder, const StateFile& producer,
                                              const StateFile& consumer);

}  // namespace aludel
