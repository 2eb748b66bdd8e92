#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/model/model_path.h"

namespace aludel {

// A codec artifact: the models it fits, its formats layer by layer with ranks, bits and bytes per token, its
// controls, and what calibration noted (measured loss among it). Reads the manifest, and the encoders where
// bits stand there.
absl::StatusOr<nlohmann::ordered_json> InspectArtifact(const std::string& directory);

// Whether the artifact belongs to these two models: hashes, layer counts, and every format's two halves
// loaded as the servers load them. Hashes both models, which reads all their weights. "fits" and "problems",
// and which formats serve the pair.
absl::StatusOr<nlohmann::ordered_json> InspectArtifactFit(const std::string& directory,
                                                          const ModelPath& producer,
                                                          const ModelPath& consumer);

}  // namespace aludel
