#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "server/gateway/openai/dialect.h"

namespace aludel {

// POST /v1/messages, Anthropic's API.
class MessagesDialect final : public Dialect {
 public:
  // `request_id`: the HTTP request's, which errors repeat.
  explicit MessagesDialect(std::string request_id) : request_id_(std::move(request_id)) {}

  size_t Weigh(absl::string_view body) override { return body.size(); }
  std::optional<ApiError> Read(absl::string_view body, CompletionRequest* request) override;
  std::unique_ptr<AnswerWriter> Writer(const CompletionRequest& request,
                                       CompletionIdentity identity) override;
  HttpResponse Refusal(const ApiError& error) const override;
  const char* id_prefix() const override { return "msg_"; }
  const char* operation() const override { return "chat"; }

 private:
  const std::string request_id_;
};

}  // namespace aludel
