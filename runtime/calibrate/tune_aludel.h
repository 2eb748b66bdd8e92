#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/calibrate_aludel.h"

namespace aludel {

// Prompts of more text whose states are on disk at a time.
inline constexpr size_t kTuningChunk = 400;

// Tunes the decoders of all consumers to their answers (aludel/tune_decoder.h): on the prompts that
// they were trained on, then on more text, each of whose prompts is seen once. More text needs disk for a few
// hundred prompts at a time: its states are computed, used for every consumer and removed again.
struct AludelTuning {
  Transformer* producer = nullptr;
  absl::Span<const std::unique_ptr<Transformer>> consumers;
  std::vector<std::string> directories;  // [consumers] as ModelPath::Parse takes them, read again as f32
  const AludelStates* states = nullptr;
  absl::Span<const std::vector<int32_t>> prompts;       // that the states hold
  absl::Span<const std::vector<int32_t>> more_prompts;  // that they do not
  std::string work;                                     // directory for their states
  int side_layers = 1;                                  // of those, see StateLayout
  int max_answer_tokens = 16;
  DecoderTuning options;
  PassageTuning passages;        // see TuneByPassages, as the next
  DType matrices = DType::kF32;  // of the consumer on the way back
  TimeLimit time;                // tuning ends at the step where it is over
};

// Mean KL per answer token over the first and the last prompts that tuning saw, each before it learnt from
// them, in nats; where passages are held out, of those before it and at its best step.
struct TuningResult {
  double first_kl = 0;
  double last_kl = 0;
};

// Changes `decoders` [consumers]. Deterministic for a seed, unless time ends it. Empty where the time was over before any
// was tuned.
absl::StatusOr<std::vector<TuningResult>> TuneAludelDecoders(
    const AludelTuning& tuning, const AludelEncoderWeights& encoder, const AludelShape& shape,
    const std::vector<std::vector<TargetMetric>>& metrics, const CalibrationProgress& progress,
    std::vector<TrainedDecoder>* decoders);

}  // namespace aludel
