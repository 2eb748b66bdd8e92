#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/gateway/api_error.h"
#include "server/gateway/completion_request.h"
#include "server/gateway/served_models.h"

namespace aludel {

// Messages and tools through the model's chat template to tokens; 400 with the template's own words where it
// refuses.
std::optional<ApiError> TokenizeChat(const ServedModel& model, const CompletionRequest& request,
                                     std::vector<int32_t>* ids);
// Plain text to tokens, with what the model wants in front (e.g. a BOS) where `add_special_tokens`.
std::optional<ApiError> TokenizeText(const ServedModel& model, absl::string_view text,
                                     bool add_special_tokens, std::vector<int32_t>* ids);
// Ids that a client made itself must be in the vocabulary.
std::optional<ApiError> CheckTokenIds(const ServedModel& model, absl::string_view param,
                                      const std::vector<int32_t>& ids);
// 400 with both numbers where no token could be generated behind the prompt. `max_context` 0: not known yet.
std::optional<ApiError> CheckLength(absl::string_view param, size_t prompt_tokens, uint64_t max_context);

ApiError ModelNotFound(absl::string_view name);

// POST /tokenize {"model", "prompt" | "messages", "tools", "add_special_tokens", "add_generation_prompt",
// "return_token_strs"} and /detokenize {"model", "tokens"}, in vLLM's shape. `max_context` tells a model's, 0
// where it is not known yet.
HttpResponse ServeTokenize(const ServedModels& models, absl::string_view body,
                           const std::function<uint64_t(const std::string&)>& max_context);
HttpResponse ServeDetokenize(const ServedModels& models, absl::string_view body);

}  // namespace aludel
