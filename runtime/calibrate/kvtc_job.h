#pragma once

#include "absl/status/status.h"
#include "kernels/device.h"
#include "runtime/calibrate/aludel_job.h"

namespace aludel {

// aludel-calibrate --preset kvtc without its command line: the baseline of aludel/kvtc.h for one model on
// both sides, whose rate is `bytes_per_token` (default 1/16 of raw). Adds format "kvtc", or the name asked
// for, to the artifact in `base.out`. InvalidArgument where producer and consumer are two models, or a loss
// is asked for.
absl::Status RunKvtcJob(const AludelJob& job, Device* device);

}  // namespace aludel
