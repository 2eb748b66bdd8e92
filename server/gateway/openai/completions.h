#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/gateway/access/access.h"
#include "server/gateway/access/request_record.h"
#include "server/gateway/access/traffic_capture.h"
#include "server/gateway/openai/completion_call.h"
#include "server/gateway/openai/completion_preparer.h"
#include "server/gateway/openai/dialect.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_server.h"
#include "server/observe/metrics.h"
#include "server/observe/request_metrics.h"
#include "server/pool/compile_cache.h"
#include "server/pool/work_pool.h"

namespace aludel {

// POST /v1/chat/completions and the other paths that ask a model, each by its dialect: from the body to a request for
// a decode server, whose answer a CompletionExchange writes.
//
//   handler thread --body is small--> read, render, tokenize --has a schema--> checked once per text, by the
//        \--body is large--> the same, on the work pool --'        \           schemas' own threads --> sent
//                                                                   '--no schema------------------------^
//
// The request's deadline counts from its first byte, and covers all of this; so does its client's going.
// Thread-safe; everything it is given must outlive it and its requests.
class Completions {
 public:
  struct Options {
    int max_requests = 1024;  // in progress; beyond: 503
    absl::Duration request_timeout = absl::Minutes(2);
    size_t max_answer_bytes = SIZE_MAX;  // of one that is not streamed
    std::vector<std::string> prefill_targets;
    TrafficCapture* capture = nullptr;  // of prompts; null: none
  };
  // A body of so many bytes is read, rendered and tokenized within some milliseconds: by the thread that it
  // came on.
  static constexpr size_t kLightBodyBytes = 16 << 10;

  // `heavy` takes what is larger.
  Completions(Options options, const ServedModels* models, Router* router, Metrics* metrics, WorkPool* heavy);

  // Ends what waits for its schema. Idempotent.
  void Shutdown() { schemas_.Shutdown(); }
  // Of the threads that compile schemas; see WorkPool.
  absl::Duration Silence() const { return schemas_.Silence(); }

  // Answers through `responder`, now or later; `on_end` is called once, before the last bytes of the answer. `grant` is
  // the request's, which `on_end` holds: it is widened to the request's choices and prompts.
  void Serve(std::unique_ptr<Dialect> dialect, HttpRequest request, const RequestIdentity& identity,
             const std::weak_ptr<Access::Grant>& grant, HttpResponder responder, OnCompletionEnd on_end);

 private:
  using Schemas = CompileCache<std::monostate>;
  using Call = CompletionCall;

  void Begin(const std::shared_ptr<Call>& call, WorkPool::Task* task);
  void CheckSchema(const std::shared_ptr<Call>& call);
  void Send(const std::shared_ptr<Call>& call);
  // How many prompts are asked about at a time: as many as together have no more choices than the key may ask for, or than
  // a server takes.
  int PromptsAtOnce(const Call& call, int choices) const;
  void Fail(Call* call, const ApiError& error);

  const Options options_;
  const ServedModels* const models_;
  Router* const router_;
  const CompletionPreparer preparer_;
  const RequestMetrics metrics_;
  WorkPool* const heavy_;
  std::atomic<int> running_{0};
  Schemas schemas_;
};

}  // namespace aludel
