#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/calibrate/plan/stage_work.h"
#include "runtime/model/transformer.h"

namespace aludel {

// What a machine does of each kind of work in a second: FLOP, of kLoad parameters.
struct WorkRates {
  WorkAmounts per_second;
  double answer_tokens = 0;  // of an answer, on average

  double Seconds(const WorkAmounts& work) const;
};

// Runs the code of every kind of work that the plan has, for about a second each, on a few of the job's prompts or on
// numbers in the shapes of its fits. Changes nothing that a fit depends on. Writes and removes files in `work`, a
// directory. `consumer` is the job's first, whose weights are read once more where the plan has passes back.
absl::StatusOr<WorkRates> MeasureRates(const PlanInput& input, Transformer& consumer,
                                       const std::string& work);

// The solvers' part of it alone, for a plan without models: on a GPU, too, they are the host's. Of growing parts of the job's
// widest closed form, until one takes `enough_seconds`.
absl::StatusOr<double> MeasureSolverRate(const PlanInput& input, double enough_seconds);

// A device that is not at hand, as its maker states it: FLOP a second of products of bf16 and of f32 (without TF32), bytes of
// memory a second, and the share of all that is reached.
struct DeviceSheet {
  double flops = 0, f32_flops = 0, bandwidth = 0, share = 0;
};
// Models compute in the type of `compute`, fits and training in f32; token by token weights are read at the bandwidth. Solvers run
// at `solver_rate`, and weight files are read at kReadBytes a second.
WorkRates RatesOfDevice(const ModelConfig& config, const DeviceSheet& device, DType compute,
                        double solver_rate, double answer_tokens);
inline constexpr double kReadBytes = 2e9;

}  // namespace aludel
