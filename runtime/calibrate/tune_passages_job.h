#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/calibrate/tune_aludel.h"

namespace aludel {

// Tuning of linear decoders by the answers to questions about passages (aludel/tune_passages.h), as a stage of a
// job: states of both sides and answers lie in `AludelTuning::work` until the job removes it, so that an interrupted
// run finds them, and the step that it had come to.

// What the stage will take.
struct PassagePlan {
  int64_t passages = 0;
  int64_t prompts = 0;
  int64_t tokens = 0;  // of the passages
  size_t disk = 0;     // bytes
  size_t memory = 0;   // bytes beside the models that calibration holds anyway
  // Multiply-adds, of running the models over the passages and of passes on the caches.
  double prefills = 0, tails = 0;
  // The mean passage's pass: rows of the cache, tokens that are fed on it, and multiply-adds of that, forward alone.
  int64_t pass_rows = 0, pass_tail = 0;
  double pass = 0;
};
PassagePlan CountPassages(const ModelConfig& config, size_t consumers,
                          absl::Span<const std::vector<int32_t>> prompts, const PassageTuning& options,
                          DType matrices, int recomputed_layers, int64_t tail_tokens);

// Passages of `prompts` that something is decoded of.
std::vector<Passage> TuningPassages(absl::Span<const std::vector<int32_t>> prompts,
                                    const RecomputedTokens& recomputed);

// InvalidArgument where there are too few of them to learn from some and to watch others.
absl::Status CheckTuningPassages(absl::Span<const std::vector<int32_t>> prompts,
                                 const RecomputedTokens& recomputed);

// How many of the first `prompts` may be taken alone, so that no passage is cut and tuning has some passages to learn
// from; ascending, up to all of them. Empty: all are too few.
std::vector<int64_t> WholePassages(absl::Span<const std::vector<int32_t>> prompts,
                                   const RecomputedTokens& recomputed);

// Like TuneAludelDecoders, on `more_prompts` alone.
absl::StatusOr<std::vector<TuningResult>> TuneByPassages(
    const AludelTuning& tuning, const AludelEncoderWeights& encoder, const AludelShape& shape,
    const std::vector<std::vector<TargetMetric>>& metrics, const CalibrationProgress& progress,
    std::vector<TrainedDecoder>* decoders);

}  // namespace aludel
