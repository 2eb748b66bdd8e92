#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/gateway/completion_request.h"
#include "server/gateway/http_server.h"
#include "server/gateway/request_record.h"
#include "server/gateway/router.h"
#include "server/gateway/served_models.h"
#include "server/metrics.h"

namespace aludel {

// POST /v1/chat/completions and /v1/completions: from the body to a request for a decode server, whose answer
// a CompletionExchange writes. Thread-safe; everything it is given must outlive it and its requests.
class Completions {
 public:
  struct Options {
    int max_requests = 1024;  // in progress; beyond: 503
    absl::Duration request_timeout = absl::Minutes(2);
    std::vector<std::string> prefill_targets;
  };
  Completions(Options options, const ServedModels* models, Router* router, Metrics* metrics);

  // Answers through `responder`, now or later; then `on_end`, once.
  void Serve(bool chat, const HttpRequest& request, const RequestIdentity& identity, HttpResponder responder,
             OnCompletionEnd on_end);

 private:
  // Its prompt as tokens, or the error to answer.
  std::optional<ApiError> Tokenize(const ServedModel& model, CompletionRequest* request,
                                   v1::GenerateRequest* generate) const;
  // A parsed request and its tokens, or the error to answer.
  std::optional<ApiError> Prepare(bool chat, const HttpRequest& http, CompletionRequest* request,
                                  v1::GenerateRequest* generate) const;

  const Options options_;
  const ServedModels* const models_;
  Router* const router_;
  Metrics* const metrics_;
  std::atomic<int> running_{0};
};

}  // namespace aludel
