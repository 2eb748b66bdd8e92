#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/fields/json_fields.h"
#include "server/gateway/openai/tools/tool_dialect.h"

namespace aludel {

// The tools of one request.
struct Tools {
  enum class Choice { kNone, kAuto, kRequired };

  nlohmann::ordered_json list;     // as the template takes them; null where no call may be made
  std::vector<std::string> names;  // of the functions that may be called: all, or the one that was chosen
  Choice choice = Choice::kNone;
  bool parallel = true;  // more than one call in an answer
};

inline constexpr size_t kMaxTools = 128;  // of a request
inline constexpr size_t kMaxFunctionNameBytes = 64;
// What a function may be called, and how an error says so.
bool IsFunctionName(absl::string_view name);
nlohmann::ordered_json FunctionNameSchema();
inline constexpr absl::string_view kFunctionNameForm = "must be 1 to 64 letters, digits, '_', '-' or '.'";

// Reads tools, tool_choice and parallel_tool_calls. A fault is left in `fields`.
void ParseTools(JsonFields& fields, Tools* tools);

// What the answer must look like where a call is required: one call of one of the functions in the dialect,
// whose arguments validate; what the format asks for has no say then. Where a call is left to the model, and there is a
// format: such a call, or the format. Otherwise nothing more. Whether they can be enforced is not known yet.
std::optional<ApiError> ConstrainToCall(const Tools& tools, ToolDialect dialect,
                                        std::optional<v1::TextConstraint>* constraint);
// What a client hears of parameters that cannot be enforced.
ApiError ToolsRefused(const absl::Status& status);

}  // namespace aludel
