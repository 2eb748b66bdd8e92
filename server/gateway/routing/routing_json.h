#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "server/gateway/routing/decode_targets.h"

namespace aludel {

// GET /admin/routing: where a prompt would go, and why. Says nothing of the prompt.
nlohmann::ordered_json RoutingJson(const std::string& model, int64_t prompt_tokens,
                                   const DecodeTargets::Explanation& explanation);

}  // namespace aludel
