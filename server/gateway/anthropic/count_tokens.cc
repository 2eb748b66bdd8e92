#include "server/gateway/anthropic/count_tokens.h"

#include <string>
#include <vector>

#include "server/gateway/anthropic/messages_request.h"
#include "server/gateway/openai/prompt.h"

namespace aludel {

std::optional<ApiError> CountTokens(const ServedModels& models, absl::string_view body,
                                    HttpResponse* response) {
  CompletionRequest request;
  if (auto error = ParseCountRequest(body, &request)) return error;
  const ServedModel* const model = models.Find(request.model);
  if (model == nullptr) return ModelNotFound(request.model);
  std::string text;
  std::string joint;
  if (auto error = RenderChat(*model, request, &text, &joint)) return error;
  std::vector<int32_t> ids;
  if (auto error = TokenizeText(*model, "messages", text, /*add_special_tokens=*/false, joint, &ids)) {
    return error;
  }
  response->body = Dump({{"input_tokens", ids.size()}});
  return std::nullopt;
}

}  // namespace aludel
