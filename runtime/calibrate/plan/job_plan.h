#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/calibrate/aludel_inputs.h"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/calibrate/plan/budget.h"
#include "runtime/calibrate/plan/calibration_plan.h"
#include "runtime/codec/artifact/artifact.h"

namespace aludel {

// The plan of a job on this machine: first what it holds, before models are loaded, then what it takes.

// Of inputs without models; both must outlive it.
absl::StatusOr<PlanInput> PlanOfJob(const AludelJob& job, const AludelInputs& inputs,
                                    const std::optional<ArtifactManifest>& old);

// CheckRoom, with the flags of the job or what the machine has free; of a device that is not here, with the flags alone.
// What the directory of intermediate files holds of an earlier run is not needed a second time.
absl::Status CheckRoomOfJob(const PlanInput& input, const AludelInputs& inputs);

// GroupLayersWithin the same room. What is free is another each time, so it is chosen once: KeepGroupLayers leaves it at
// GroupLayersPath, and an interrupted run comes to the same artifact. Prints what it chooses.
int GroupLayersOfJob(const PlanInput& input, const AludelInputs& inputs);
// Of the input before anything was chosen for it.
std::string GroupLayersPath(const PlanInput& input, const AludelInputs& inputs);
absl::Status KeepGroupLayers(const std::string& path, int layers);

struct TimedPlan {
  CalibrationPlan plan;
  std::string budget;  // what one chose, for people; "": there is none
};

// Measures this machine with the models loaded, prints the plan, and, where there is a budget, changes the job and the
// prompts to what it buys.
absl::StatusOr<TimedPlan> PlanOnMachine(const std::optional<ArtifactManifest>& old, AludelJob* job,
                                        AludelInputs* inputs);

// Prints the plan of the device that the job describes, whose host solves as this machine does.
absl::Status PrintPlanOfDevice(const PlanInput& input);

}  // namespace aludel
