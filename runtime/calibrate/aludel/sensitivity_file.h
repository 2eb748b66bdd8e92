#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/sensitivity.h"

namespace aludel {

// The sensitivity of these prompts from its file in `directory`, or from `measure`, whose result is then
// written there: whole or not at all. Every rate and structure shares it, and it costs a pass backward through
// the model for each prompt. A file of other models, prompts, columns or options has another name.
absl::StatusOr<Sensitivity> OpenSensitivity(const std::string& directory, const Transformer& consumer,
                                            absl::Span<const std::vector<int32_t>> prompts,
                                            absl::Span<const CacheColumns> ranges,
                                            const SensitivityOptions& options,
                                            const std::function<absl::StatusOr<Sensitivity>()>& measure);

}  // namespace aludel
