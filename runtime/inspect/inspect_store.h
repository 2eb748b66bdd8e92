#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace aludel {

// What a prefix store keeps in a directory, segment by segment, every chunk's checksum verified. FailedPrecondition
// where a server has it open; NotFound where no store is there.
absl::StatusOr<nlohmann::ordered_json> InspectStore(const std::string& directory);

}  // namespace aludel
