#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "server/gateway/access/access.h"
#include "server/gateway/access/request_record.h"
#include "server/gateway/openai/answer/completion_exchange.h"
#include "server/gateway/openai/answer/prompt_echo.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/openai/dialect.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/http/http_server.h"

namespace aludel {

// One request until it is sent to a decode server: from its body to what its exchange needs.
struct CompletionCall {
  CompletionCall(std::unique_ptr<Dialect> dialect, HttpRequest http, RequestIdentity identity,
                 const std::weak_ptr<Access::Grant>& grant, HttpResponder responder, OnCompletionEnd on_end)
      : dialect(std::move(dialect)),
        http(std::move(http)),
        identity(std::move(identity)),
        limits(grant.lock()->limits()),
        grant(grant),
        responder(std::move(responder)),
        on_end(std::move(on_end)) {}

  // As far as the request tells it. `names_model`: request.model is one of ours.
  CompletionOutcome Outcome(bool names_model) const;
  // What answers it, which takes its dialect, prompts and on_end. `numerics`: of its model's servers.
  std::shared_ptr<CompletionExchange> MakeExchange(const std::string& numerics, size_t max_answer_bytes,
                                                   const RequestMetrics* metrics);

  std::unique_ptr<Dialect> dialect;
  HttpRequest http;
  const RequestIdentity identity;
  const KeyLimits limits;
  const std::weak_ptr<Access::Grant> grant;  // on_end's, which gives it back
  HttpResponder responder;
  OnCompletionEnd on_end;
  absl::Time deadline;  // of MonotonicNow()
  CompletionRequest request;
  int places = 1;                            // that the grant has; where it is bounded
  const ServedModel* model = nullptr;        // that request.model names, or is an adapter over
  std::vector<PromptEcho::Options> prompts;  // one at least
  ReasoningSplitter::Mode thoughts = ReasoningSplitter::Mode::kOff;
  v1::GenerateRequest generate;  // but for the prompt
};

}  // namespace aludel
