#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/fields/json_fields.h"
#include "server/gateway/openai/reasoning/reasoning_splitter.h"

namespace aludel {

// What a chat template knows of thinking, told from its text (ChatTemplate::tool_source()).
struct Thinking {
  bool spans = false;       // <think> ... </think> in front of an answer
  bool can_switch = false;  // the argument "enable_thinking"
  bool has_effort = false;  // the argument "reasoning_effort"
};
Thinking DetectThinking(absl::string_view chat_template);

// What a request says of it.
struct ThinkingWish {
  std::string effort;              // from "none" on; "": as the template has it
  std::string param;               // what the client calls that
  bool lenient = false;            // where the template has no such choice, it is as it is
  std::optional<uint32_t> budget;  // tokens
  std::string budget_param;
};

// How much the model is to think, by the name that the API has for it: "none" to "max". A fault is left in `fields`.
void ParseEffort(JsonFields& fields, absl::string_view member, const std::string& param, ThinkingWish* wish);
// At most so many tokens of thoughts.
void ParseThinkingBudget(JsonFields& fields, absl::string_view member, const std::string& param,
                         int64_t least, ThinkingWish* wish);

// Tells the template, in its own words; what `context` has by then goes first. 400 where it has none.
std::optional<ApiError> SetEffort(const Thinking& thinking, absl::string_view model, const ThinkingWish& wish,
                                  nlohmann::ordered_json* context);

// Where the answer to a rendered prompt begins: `last` is the final message where that goes on, else null.
ReasoningSplitter::Mode ThoughtsBehind(const Thinking& thinking, absl::string_view rendered,
                                       const nlohmann::ordered_json* last);

// Lets thoughts stand in front of a constraint, and bounds them by the wish's budget. 400 where they cannot be bounded.
std::optional<ApiError> LetThink(ReasoningSplitter::Mode mode, const Thinking& thinking,
                                 absl::string_view model, const Tokenizer& tokenizer,
                                 const ThinkingWish& wish, v1::GenerateRequest* generate);

}  // namespace aludel
