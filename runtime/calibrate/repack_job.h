#pragma once

#include "absl/status/status.h"
#include "kernels/device.h"
#include "runtime/calibrate/aludel_job.h"

namespace aludel {

// aludel-calibrate --repack without its command line: gives aludel formats of the artifact in `base.out` the packing
// rans, embedded or video, all of them or the one that `format` names; those that have it get other scales. Tensors stay as they are
// stored, so that the measured loss does; scales of codes are fitted to `base.data`, whose held-out prompts tell the
// bytes. Of `base.consumers` the first renders the prompts. The scales make encoders new files, of another hash:
// both servers of a running pair need the new artifact. InvalidArgument where `options` have another packing, as
// encoders of deflate and fixed are one file and their frames could not be told apart; so would be those of rans and of
// embedded, if an embedded format became rans. With video first of all what CheckPacking says.
absl::Status RunRepackJob(const AludelJob& job, Device* device);

}  // namespace aludel
