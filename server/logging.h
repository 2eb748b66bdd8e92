#pragma once

#include "nlohmann/json_fwd.hpp"
#include "server/config.h"

namespace aludel {

// Points spdlog's default logger, and gRPC's own log, at standard error: as text, or as one JSON object a
// line with time, level, process and message. Call once, before threads start. Messages never hold prompt or
// answer text, only ids, sizes and reasons.
void StartLogging(const LogOptions& options, const char* process);

// One line, at level info, about one thing that happened: as text "name key=value ...", as JSON an object
// with `name` as its message and the fields as members of their own.
void LogEvent(const char* name, const nlohmann::ordered_json& fields);

}  // namespace aludel
