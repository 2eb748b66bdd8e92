#pragma once

#include "absl/status/statusor.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/engine/sampling/sampler.h"

namespace aludel {

// The wire's sampling parameters as the engine takes them. InvalidArgument names the field, what was found
// and what is allowed; the engine checks token ids, as it knows the vocabulary.
absl::StatusOr<SamplingParams> ReadSampling(const v1::SamplingParams& wire);

}  // namespace aludel
