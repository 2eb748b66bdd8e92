#pragma once

#include "absl/status/status.h"
#include "kernels/device.h"
#include "runtime/calibrate/aludel_job.h"

namespace aludel {

// aludel-calibrate --share: measures what adapters (the job's consumers, BASE+ADAPTER each) lose with the decoder that
// the artifact in `base.out` has for their base, on the prompts that a fit would hold out, and fits nothing. Where the
// upper end of the mean's 95 % interval stays within `max_kl`, the artifact names that decoder as the adapter's, too,
// with what was measured of this adapter; a decoder that it had is replaced. `format` is the one to look at; "": all
// of preset aludel. Prints every loss that it finds. OutOfRange, with the artifact as it was, where none of them is
// within; FailedPrecondition where there is no decoder for a base.
absl::Status RunShareJob(const AludelJob& job, Device* device);

}  // namespace aludel
