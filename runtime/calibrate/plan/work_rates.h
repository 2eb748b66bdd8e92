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

// A device that nobody has at hand, from what its makers state: every product runs at `share` of `flops` a second, and
// token by token at `share` of `bandwidth`, bytes a second that weights of `weight_bytes` a parameter are read at.
WorkRates RatesOfDevice(const ModelConfig& config, double flops, double bandwidth, double share,
                        double weight_bytes, double answer_tokens);

}  // namespace aludel
