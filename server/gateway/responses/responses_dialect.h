#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "nlohmann/json.hpp"
#include "server/gateway/openai/dialect.h"
#include "server/gateway/responses/response_store.h"
#include "server/gateway/responses/responses_request.h"

namespace aludel {

// POST /v1/responses, OpenAI's newer API.
class ResponsesDialect final : public Dialect {
 public:
  // `store` outlives the answer.
  ResponsesDialect(ResponseStore* store, std::string client);

  size_t Weigh(absl::string_view body) override;
  void TakeShare(std::shared_ptr<HttpBodyHold> share) override { share_ = std::move(share); }
  std::optional<ApiError> Read(absl::string_view body, CompletionRequest* request) override;
  std::unique_ptr<AnswerWriter> Writer(const CompletionRequest& request,
                                       CompletionIdentity identity) override;
  HttpResponse Refusal(const ApiError& error) const override { return error.ToResponse(); }
  const char* id_prefix() const override { return "resp_"; }
  const char* operation() const override { return "chat"; }

 private:
  ResponsesContext context_;
  ResponsesRequest request_;
  // Of the memory for bodies: the writer keeps much of this one, and what it brings along.
  std::shared_ptr<HttpBodyHold> share_;
};

// GET and DELETE /v1/responses/{id}. `query`: the URL's, behind its "?".
HttpResponse GetResponse(ResponseStore* store, const std::string& client, const std::string& id,
                         absl::string_view query);
HttpResponse DeleteResponse(ResponseStore* store, const std::string& client, const std::string& id);

}  // namespace aludel
