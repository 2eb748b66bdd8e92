#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/passage.h"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/codec/aludel/weights.h"
#include "runtime/model/model_config.h"

namespace aludel {

// What a calibration of preset aludel is going to compute, read and hold, counted stage by stage from the job and its
// prompts before anything starts. Pure: the time that it takes comes from WorkRates, which are measured or given.

enum class Stage : uint8_t {
  kLoading,      // of the models
  kPrefills,     // every model over the prompts, whose states are written
  kAnswers,      // the consumers' to held-out prompts
  kSensitivity,  // where errors hurt: a pass back through each consumer
  kEncoders,     // closed form
  kTraining,     // of the decoders
  kTuning,       // of the decoders to the consumers' answers
  kMeasurement,  // of whole handoffs, on held-out prompts
  kWriting,      // of the artifact
};
inline constexpr int kStages = 9;
absl::string_view Name(Stage stage);

// Kinds of work that a machine does at different rates.
enum class Work : uint8_t {
  kPrefill,  // FLOP of a model over prompts
  kDecode,   // FLOP of a model token by token
  kTail,     // FLOP of passes on a given cache, forward and back
  kNetwork,  // FLOP of encoders and decoders, and of training these
  kMoments,  // FLOP of covariances
  kSolver,   // FLOP of closed forms in f64
  kLoad,     // parameters read from weight files and widened
};
inline constexpr int kWorks = 7;
absl::string_view Name(Work work);

struct WorkAmounts {
  std::array<double, kWorks> values{};
  double& operator[](Work work) { return values[static_cast<size_t>(work)]; }
  double operator[](Work work) const { return values[static_cast<size_t>(work)]; }
};

// A stage, `least` to `most` times. A search for a loss does not know how many fits it will take.
struct StageWork {
  Stage stage = Stage::kLoading;
  WorkAmounts once;
  int64_t least = 1, most = 1;
  double memory = 0;  // bytes at its peak, models included
  double device = 0;  // of a GPU's memory likewise; 0: models run on the CPU
  double disk = 0;    // bytes that it adds
};

// What is counted.
struct PlanInput {
  const AludelJob& job;
  const ModelConfig& config;
  absl::Span<const std::vector<int32_t>> train, held_out, more;  // token ids; `more` for tuning
  std::optional<AludelShape> extended;                           // the format that the job extends
  bool by_passages = false;                                      // see TuneByPassages
  double artifact_bytes = 0;                                     // of what lies in the destination
  double process_bytes = 0;  // that the process holds before it has models
  bool linear = false;       // decoders of `extended`
  bool on_gpu = false;       // models, and large products (fit/device_products.h)
};

// [stages that the job has], in their order. An answer is taken to have `answer_tokens`.
std::vector<StageWork> CountWork(const PlanInput& input, double answer_tokens);

double Parameters(const ModelConfig& config);

RecomputedTokens RecomputedOf(const PlanInput& input);

// Parts of it that a measurement of rates needs, too: FLOP of feeding `tokens` on a cache of `cached` tokens, of a
// training step for each row of its batch, and of solving for an encoder (FitInnovation).
double TailFlops(const ModelConfig& config, double cached, double tokens);
double TrainingFlops(int64_t inputs, int64_t width, int64_t outputs);
double EncoderSolverFlops(double main, double side, double outputs, double rank);

// Inputs, width and outputs of the decoder of the plan's widest group, and its rank.
struct NetShape {
  int64_t inputs = 0, width = 0, outputs = 0, rank = 0;
};
NetShape PlannedNet(const PlanInput& input);

}  // namespace aludel
