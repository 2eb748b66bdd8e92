#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/model/served_models.h"

namespace aludel {

// Messages and tools through the model's chat template to text, which needs no special tokens added; 400 with
// the template's own words where it refuses. `joint` is to be given to TokenizeText with the text.
std::optional<ApiError> RenderChat(const ServedModel& model, const CompletionRequest& request,
                                   std::string* text, std::string* joint);
// 400 for a text that cannot be a prompt, so that it is not tokenized to learn that: longer than a context
// full of the longest token. (A normalizer may shorten a text, and no tokens of a published model are so long
// that this would matter.) `max_context` 0: not known yet.
std::optional<ApiError> CheckTextLength(const ServedModel& model, absl::string_view param,
                                        absl::string_view text, uint64_t max_context);
// Text to tokens, with what the model wants in front (e.g. a BOS) where `add_special_tokens`. `joint`: of
// RenderChat, else "".
std::optional<ApiError> TokenizeText(const ServedModel& model, absl::string_view param,
                                     absl::string_view text, bool add_special_tokens, absl::string_view joint,
                                     std::vector<int32_t>* ids);
// The prompt of a chat request of these fields ("messages", "tools" and others) as tokens.
std::optional<ApiError> TokenizeChat(const ServedModel& model, const nlohmann::ordered_json& fields,
                                     std::vector<int32_t>* ids);
// 400 with the numbers where no token could be generated behind the prompt, or not as many as the client
// asked for. `param` is the prompt's name, `max_context` 0: not known yet.
std::optional<ApiError> CheckLength(const CompletionRequest& request, absl::string_view param,
                                    size_t prompt_tokens, uint64_t max_context);

ApiError ModelNotFound(absl::string_view name);

// POST /tokenize {"model", "prompt" | "messages", "tools", "add_special_tokens", "add_generation_prompt",
// "return_token_strs"} and /detokenize {"model", "tokens"}, in vLLM's shape. `max_context` tells a model's, 0
// where it is not known yet.
HttpResponse ServeTokenize(const ServedModels& models, absl::string_view body,
                           const std::function<uint64_t(const std::string&)>& max_context);
// What they take, as JSON schemas, by their own code.
nlohmann::ordered_json DescribeTokenizeBody();
nlohmann::ordered_json DescribeDetokenizeBody();
HttpResponse ServeDetokenize(const ServedModels& models, absl::string_view body);

}  // namespace aludel
