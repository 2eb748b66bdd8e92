#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/completion_call.h"
#include "server/gateway/openai/model/served_models.h"
#include "server/gateway/routing/router.h"
#include "server/pool/work_pool.h"

namespace aludel {

// Of the prompts of one request; the others follow as these end.
inline constexpr int kPromptsAtOnce = 8;

// Makes of a body what a decode server is sent: reads it in its dialect, checks it against the limits of its key and
// its model, renders and tokenizes its prompts. Thread-safe.
class CompletionPreparer {
 public:
  struct Options {
    absl::Duration request_timeout;
    size_t max_answer_bytes = SIZE_MAX;
    std::vector<std::string> prefill_targets;
  };
  // Both must outlive this.
  CompletionPreparer(Options options, const ServedModels* models, Router* router)
      : options_(std::move(options)), models_(models), router_(router) {}

  // A parsed request and its tokens, or the error to answer. `task` is told the request's deadline as soon as
  // that is known; null on a handler thread.
  std::optional<ApiError> Prepare(CompletionCall* call, WorkPool::Task* task) const;

 private:
  // One of its prompts as tokens, or the error to answer; `prompt` is unused in a chat.
  std::optional<ApiError> Tokenize(const ServedModel& model, const CompletionRequest& request,
                                   absl::string_view param, PlainPrompt prompt, PromptEcho::Options* tokens,
                                   ReasoningSplitter::Mode* thoughts) const;
  std::optional<ApiError> TokenizeAll(const ServedModel& model, CompletionCall* call) const;

  const Options options_;
  const ServedModels* const models_;
  Router* const router_;
};

}  // namespace aludel
