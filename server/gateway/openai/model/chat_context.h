#pragma once

#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "runtime/text/chat_template/chat_template.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// What of a chat template's context came with a request must not be taken for control tokens, which the
// template alone writes. So a joint, a character that stands nowhere in the context, breaks up the spellings
// of special tokens before the template is rendered; filters of templates keep it, as it is neither white
// space nor a letter, and the tokenizer drops it. A context that spells no special token stays as it is.

// Breaks all strings of `context`, names of members included. `joint` is what to encode the rendered text
// with; "": nothing was broken. An error where the strings leave no character for a joint.
std::optional<ApiError> BreakSpecialTokens(const Tokenizer& tokenizer, nlohmann::ordered_json* context,
                                           std::string* joint);

// FailedPrecondition where messages could forge control tokens nonetheless: for the tokenizer's sake, or
// because the template does not keep the joints. Renders a conversation to find out.
absl::Status CheckBreaking(const Tokenizer& tokenizer, const ChatTemplate& chat_template);
// Whether the template marks turns by special tokens; by plain text, any message can mark them.
bool MarksTurnsBySpecialTokens(const Tokenizer& tokenizer, const ChatTemplate& chat_template);

}  // namespace aludel
