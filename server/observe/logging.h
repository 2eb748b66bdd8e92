#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "server/config/common_options.h"
#include "spdlog/formatter.h"

namespace aludel {

// Points spdlog's default logger, and gRPC's own log, at standard error: as text, or as one JSON object a
// line with time, level, process and message. Call once, before threads start. Messages never hold prompt or
// answer text, only ids, sizes and reasons. What a peer put into a message stays on its line: the formatter
// escapes control characters, whatever call wrote them.
void StartLogging(const LogOptions& options, const char* process);

// One line, at level info, about one thing that happened: as text "name key=value ...", as JSON an object
// with `name` as its message and the fields as members of their own.
void LogEvent(const char* name, const nlohmann::ordered_json& fields);

// `text` with what could end a line, move a terminal's cursor or reorder what it shows as \n, \r, \t, \xNN or
// \uNNNN: C0 and C1 control characters, DEL, line and paragraph separators, directional marks, and bytes that
// are not UTF-8. Backslashes stay as they are.
std::string EscapeControls(absl::string_view text);
// What StartLogging formats lines with.
std::unique_ptr<spdlog::formatter> MakeLogFormatter(bool json);

}  // namespace aludel
