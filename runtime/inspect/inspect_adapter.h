#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/model/adapters/lora_adapter.h"

namespace aludel {

// What a LoRA adapter says of itself: its base by name, rank, scale and targets, and its size.
nlohmann::ordered_json DescribeAdapter(const LoraAdapter& adapter);

// An adapter's directory without its base. Whether the adapter fits a base is what InspectModel says
// of BASE+ADAPTER.
absl::StatusOr<nlohmann::ordered_json> InspectAdapter(const std::string& directory);

}  // namespace aludel
