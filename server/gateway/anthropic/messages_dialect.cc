#include "server/gateway/anthropic/messages_dialect.h"

#include "server/gateway/anthropic/anthropic_error.h"
#include "server/gateway/anthropic/messages_request.h"
#include "server/gateway/anthropic/messages_writer.h"

namespace aludel {

std::optional<ApiError> MessagesDialect::Read(absl::string_view body, CompletionRequest* request) {
  return ParseMessagesRequest(body, request);
}

std::unique_ptr<AnswerWriter> MessagesDialect::Writer(const CompletionRequest&, CompletionIdentity identity) {
  return std::make_unique<MessagesWriter>(std::move(identity), request_id_);
}

HttpResponse MessagesDialect::Refusal(const ApiError& error) const {
  return AnthropicRefusal(error, request_id_);
}

}  // namespace aludel
