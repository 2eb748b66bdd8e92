#pragma once

#include "absl/status/status.h"
#include "kernels/device.h"
#include "runtime/calibrate/aludel_job.h"

namespace aludel {

// aludel-calibrate --repack without its command line: gives aludel formats of the artifact in `base.out` the packing in
// `options`, all of them or the one that `format` names. Latents and decoders stay as they are, so that the measured
// loss does; scales of codes are fitted to `base.data`, whose held-out prompts tell the bytes. Of `base.consumers` the
// first renders the prompts. Encoders are new files: both servers of a running pair need the new artifact.
absl::Status RunRepackJob(const AludelJob& job, Device* device);

}  // namespace aludel
