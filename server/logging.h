#pragma once

#include "server/config.h"

namespace aludel {

// Points spdlog's default logger, and gRPC's own log, at standard error: as text, or as one JSON object a
// line with time, level, process and message. Call once, before threads start. Messages never hold prompt or
// answer text, only ids, sizes and reasons.
void StartLogging(const LogOptions& options, const char* process);

}  // namespace aludel
