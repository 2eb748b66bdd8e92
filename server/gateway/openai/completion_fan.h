#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "aludel/v1/handoff.pb.h"
#include "grpcpp/support/status.h"
#include "server/gateway/openai/completion_exchange.h"
#include "server/gateway/routing/router.h"

namespace aludel {

// The calls of one request to decode servers, one for each of its prompts and some at a time, whose answers become one.
// The first that fails ends them all with its status. Where a server is lost, an answer that was begun is only ever
// continued: it cannot begin again as a single prompt's may. Kept alive by its calls. Thread-safe.
class CompletionFan : public GenerateCall, public std::enable_shared_from_this<CompletionFan> {
 public:
  // `router` must outlive the fan. `request` lacks the prompt.
  CompletionFan(Router* router, Router::Request request, std::vector<std::vector<int32_t>> prompts,
                int at_once, std::shared_ptr<CompletionExchange> exchange);
  void Start() { Advance(); }
  // The exchange's OnEnd follows soon.
  void Cancel() override;

 private:
  class Part;

  Router::Request RequestOf(size_t prompt);
  // Starts calls while some may run.
  void Advance();
  void Ended(size_t prompt, const grpc::Status& status);

  Router* const router_;
  const Router::Request request_;
  std::vector<std::vector<int32_t>> prompts_;  // of those that have not started
  const size_t at_once_;

  // Held during calls of the exchange, which takes one at a time.
  absl::Mutex exchange_mutex_;
  const std::shared_ptr<CompletionExchange> exchange_;
  v1::Started started_ ABSL_GUARDED_BY(exchange_mutex_);  // of all that have started
  bool any_started_ ABSL_GUARDED_BY(exchange_mutex_) = false;

  absl::Mutex mutex_;
  std::vector<std::shared_ptr<GenerateCall>> calls_ ABSL_GUARDED_BY(mutex_);  // by prompt; null: not running
  std::vector<char> ended_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);  // of the first that failed
};

}  // namespace aludel
