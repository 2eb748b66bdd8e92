#pragma once

#include <optional>

#include "aludel/v1/handoff.pb.h"
#include "server/gateway/openai/fields/json_fields.h"

namespace aludel {

// The "workflow" among these fields: {"id", "agent", "next"}. A fault is left in `fields`.
std::optional<v1::Workflow> ReadWorkflow(JsonFields& fields);

}  // namespace aludel
