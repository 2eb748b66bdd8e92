#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/gateway/openai/dialect.h"

namespace aludel {

// /v1/chat/completions and /v1/completions.
class OpenAiDialect final : public Dialect {
 public:
  explicit OpenAiDialect(bool chat) : chat_(chat) {}

  size_t Weigh(absl::string_view body) override { return body.size(); }
  std::optional<ApiError> Read(absl::string_view body, CompletionRequest* request) override;
  std::unique_ptr<AnswerWriter> Writer(const CompletionRequest& request,
                                       CompletionIdentity identity) override;
  HttpResponse Refusal(const ApiError& error) const override { return error.ToResponse(); }
  const char* id_prefix() const override { return chat_ ? "chatcmpl-" : "cmpl-"; }
  const char* operation() const override { return chat_ ? "chat" : "text_completion"; }

 private:
  const bool chat_;
};

}  // namespace aludel
