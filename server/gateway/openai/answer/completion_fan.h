#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "aludel/v1/handoff.pb.h"
#include "grpcpp/support/status.h"
#include "server/gateway/openai/answer/completion_exchange.h"
#include "server/gateway/routing/router.h"

namespace aludel {

// The calls of one request to decode servers, one for each of its prompts and some at a time, whose answers become one.
// A call that finds no room while others of the request run is made again when one of them has ended, and fewer run at a
// time until then. The first that fails otherwise ends them all with its status. Where a server is lost, an answer that was begun is only ever
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
  struct Running {
    uint64_t attempt = 0;  // 0: not running
    size_t answered = 0;   // prompts that were by its begin
    std::shared_ptr<GenerateCall> call;
  };

  Router::Request RequestOf(size_t prompt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next prompt to be asked about, if there is one and it may run now.
  std::optional<size_t> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts calls while some may run.
  void Advance();
  // Whether a call that ended in `status` is to be made again. `begun`: something of its answer has come.
  bool IsPutBack(const Running& part, const grpc::Status& status, bool begun) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Ended(size_t prompt, const grpc::Status& status, bool begun);
  // Ends the calls of an answer that is too long.
  void CancelIf(bool too_long) {
    if (too_long) Cancel();
  }

  Router* const router_;
  const Router::Request request_;
  const size_t most_at_once_;

  // Held during calls of the exchange, which takes one at a time.
  absl::Mutex exchange_mutex_;
  const std::shared_ptr<CompletionExchange> exchange_;
  v1::Started started_ ABSL_GUARDED_BY(exchange_mutex_);  // of all that have started
  bool any_started_ ABSL_GUARDED_BY(exchange_mutex_) = false;

  absl::Mutex mutex_;
  std::vector<std::vector<int32_t>> prompts_ ABSL_GUARDED_BY(mutex_);  // empty: answered
  std::vector<Running> parts_ ABSL_GUARDED_BY(mutex_);                 // by prompt
  std::vector<size_t> put_back_ ABSL_GUARDED_BY(mutex_);               // prompts that found no room
  size_t at_once_ ABSL_GUARDED_BY(mutex_);
  uint64_t attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t answered_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);  // of the first that failed
};

}  // namespace aludel
