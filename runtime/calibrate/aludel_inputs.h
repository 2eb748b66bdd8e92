#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/calibrate/calibrate_aludel.h"
#include "runtime/calibrate/handoff_probe.h"
#include "runtime/calibrate/plan/stage_meter.h"
#include "runtime/calibrate/tune_aludel.h"
#include "runtime/model/transformer.h"

namespace aludel {

// What every fit of a job starts from: models, prompts, what the models compute for them, and what the
// consumers answer.
struct AludelInputs {
  ModelConfig config;  // of all of them
  std::unique_ptr<Transformer> producer;
  std::vector<std::unique_ptr<Transformer>> consumers;
  CalibrationPrompts prompts;
  std::vector<std::vector<int32_t>> more_prompts;  // for tuning
  std::string work;                                // directory of intermediate files
  std::string gpu;                                 // that models run on; "": on the CPU
  int64_t head_tokens = 0;                         // recomputed ones
  int most_recomputed = 0;                         // layers that any structure tried may recompute
  double process_bytes = 0;                        // held before models were loaded
  bool by_passages = false;                        // how tuning learns from more_prompts: TuneByPassages
  AludelStates states;
  std::vector<std::unique_ptr<HandoffProbe>> probes;  // [consumers]

  double raw_bytes() const;  // of a token's raw cache
};

// Prompts, and settings that follow from the job; no weights.
absl::StatusOr<AludelInputs> LoadTexts(const AludelJob& job);
absl::Status LoadModels(const AludelJob& job, Device* device, AludelInputs* inputs);

// "640 prompts with 140000 tokens to fit, 71 held out".
std::string DescribePrompts(const AludelInputs& inputs);

// The rest: runs every model over the prompts.
absl::Status CollectStates(const AludelJob& job, const CalibrationProgress& progress, StageMeter* meter,
                           AludelInputs* inputs);

// The tuning that the job asks for, over inputs that must live as long.
AludelTuning TuningOf(const AludelJob& job, const AludelInputs& inputs);

}  // namespace aludel
