#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "runtime/calibrate/calibrate_job.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/model/transformer.h"

namespace aludel {

// What every preset's calibration begins with.

// CheckPair of the producer and each consumer, that models' weights are not loaded for: the producer's config with the smallest
// max_positions.
absl::StatusOr<ModelConfig> CheckPairs(const CalibrateJob& job);

// Renders questions of the file `data` with the first consumer's template, at most `most` of them where that
// is not 0. Errors name the file, what was found and what is needed.
absl::StatusOr<std::vector<std::vector<int32_t>>> LoadPrompts(const CalibrateJob& job,
                                                              const std::string& data, int64_t most,
                                                              const ModelConfig& config);

// The job's prompts, split: the last `held_out` fraction chooses and measures.
absl::StatusOr<CalibrationPrompts> LoadCalibrationPrompts(const CalibrateJob& job, const ModelConfig& config);

int64_t TokenCount(const std::vector<std::vector<int32_t>>& prompts);

absl::StatusOr<std::unique_ptr<Transformer>> LoadForCalibration(const CalibrateJob& job, Device* device,
                                                                const std::string& model);

// A question file by name and SHA-256.
absl::StatusOr<std::string> DescribeData(const std::string& path);

// How people name a model: see ModelPath::Name.
std::string ModelName(const std::string& model);

std::string MiB(size_t bytes);
void PrintLine(const std::string& line);

}  // namespace aludel
