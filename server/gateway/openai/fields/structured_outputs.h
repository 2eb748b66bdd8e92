#pragma once

#include <optional>
#include <string>

#include "aludel/v1/handoff.pb.h"
#include "server/gateway/openai/fields/json_fields.h"

namespace aludel {

// Reads what other servers' clients send in place of response_format: vLLM's structured_outputs and guided_json,
// guided_regex, guided_choice and guided_grammar, SGLang's regex and ebnf, llama.cpp's grammar, and the json_schema of
// both. One constraint in all, that of the API's own field included: a second one is a fault, left in `fields`. `param` names the
// one that was read. Whether it can be enforced is not known yet.
void ParseStructuredOutputs(JsonFields& fields, std::optional<v1::TextConstraint>* constraint,
                            std::string* param);

}  // namespace aludel
