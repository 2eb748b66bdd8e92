#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/calibrate/aludel_job.h"
#include "runtime/tool/flag_set.h"

namespace aludel {

// Flags of aludel-calibrate's plan, before they are numbers.
struct PlanFlags {
  std::string max_memory, max_disk, max_device_memory, budget;
  double device_flops = 0, device_f32_flops = 0, device_bandwidth = 0, device_share = 0;
  int64_t patience = -1, training_tokens = 0;
};

// Flags write into `job` and `raw`, which outlive them.
void AddPlanFlags(FlagSet* flags, AludelJob* job, PlanFlags* raw);

// InvalidArgument where flags are given to a job without a plan: what would be ignored is refused.
absl::Status CheckIsPlanned(const PlanFlags& raw, const AludelJob& job, bool planned);

// InvalidArgument, naming the flags, where they make no sense or exclude each other.
absl::Status ReadPlanFlags(const PlanFlags& raw, AludelJob* job);

}  // namespace aludel
