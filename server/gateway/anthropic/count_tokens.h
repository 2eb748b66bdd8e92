#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/http/http_message.h"

namespace aludel {

// POST /v1/messages/count_tokens: the prompt of such a message in tokens, template and tools included.
std::optional<ApiError> CountTokens(const ServedModels& models, absl::string_view body,
                                    HttpResponse* response);

}  // namespace aludel
