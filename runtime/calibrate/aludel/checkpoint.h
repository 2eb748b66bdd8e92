#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/decoder_net.h"

namespace aludel {

// What a training is resumed from after an interruption: figures of its course and all its weights, in a file that is
// whole or absent, after a loss of power, too, and says by a hash that it is. Numbers of this machine: resumed training
// ends with the same bytes.

// Overwrites the file at `path`, and is on the disk when it returns.
absl::Status SaveCheckpoint(const std::string& path, absl::Span<const double> course,
                            const WeightList& weights);

// False where there is none, or one of another length or hash or that cannot be read, and then nothing is changed.
bool LoadCheckpoint(const std::string& path, absl::Span<double> course, const WeightList& weights);

}  // namespace aludel
