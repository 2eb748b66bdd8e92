#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/gateway/openai/answer/completion_meter.h"
#include "server/gateway/openai/answer/completion_response.h"
#include "server/gateway/openai/answer/kept_answer.h"
#include "server/gateway/openai/answer/prompt_echo.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/dialect.h"
#include "server/gateway/routing/router.h"
#include "server/http/http_server.h"
#include "server/observe/request_metrics.h"

namespace aludel {

// Turns one decode server's events into one HTTP answer, streamed or whole. Created by
// Completions, kept alive by the Router's call; its methods come from gRPC's threads, one at a time.
class CompletionExchange : public GenerateObserver, public std::enable_shared_from_this<CompletionExchange> {
 public:
  struct Options {
    std::unique_ptr<Dialect> dialect;
    std::unique_ptr<AnswerWriter> writer;
    bool chat = true;
    bool return_token_ids = false;
    int choices = 1;                           // of each prompt
    std::vector<PromptEcho::Options> prompts;  // one at least
    ToolCallParser::Options tools;
    ReasoningSplitter::Mode reasoning = ReasoningSplitter::Mode::kOff;
    const Tokenizer* tokenizer = nullptr;  // outlives the exchange
    size_t max_answer_bytes = SIZE_MAX;    // kept of it at a time: beyond, the answer is an error
  };
  // `metrics` must outlive the exchange.
  CompletionExchange(Options options, CompletionMeter::Options measured, HttpResponder responder,
                     const RequestMetrics* metrics);

  void OnStarted(const v1::Started& started) override { OnStarted(0, started); }
  void OnTrace(const v1::RequestTrace& trace) override { meter_.OnTrace(trace); }
  void OnPromptLogprobs(const v1::PromptLogprobs& piece) override { OnPromptLogprobs(0, piece); }
  // The same for one of several prompts, whose choices follow those of the prompts before it. `started` is of all
  // prompts that have started.
  void OnStarted(size_t prompt, const v1::Started& started);
  void OnPromptLogprobs(size_t prompt, const v1::PromptLogprobs& piece);
  // The answer is an error already, for its length.
  bool too_long() const { return kept_.too_long().has_value(); }
  bool OnToken(const v1::Token& token) override;
  void OnFinished(const v1::Finished& finished) override;
  void OnEnd(const grpc::Status& status) override;
  bool Restart() override;

 private:
  int all_choices() const { return options_.choices * static_cast<int>(options_.prompts.size()); }
  // What is told of a prompt in front of its choices' first tokens.
  void TellPrompt(size_t prompt);
  // What an event made of a choice that held back `held` bytes before it.
  void Tell(uint32_t choice, size_t held, const ChoiceDelta& delta);
  void Emit(uint32_t choice, const ChoiceDelta& delta);
  // An answer of which too much is kept, what may be part of a call included, is forgotten: its error follows at the end
  // of the call.
  void CheckLength();
  // Every choice has ended, `last` as the last one.
  void Complete(uint32_t last);

  const Options options_;
  HttpResponder responder_;
  CompletionMeter meter_;
  KeptAnswer kept_;
  std::vector<PromptEcho> echoes_;
  std::vector<CompletionChoice> choices_;
  int open_choices_;
  TokenUsage usage_;
  uint32_t stored_tokens_ = 0;  // of the prompts that have ended
  bool has_started_ = false;    // streamed: the head has left
  bool has_content_ = false;    // streamed: something of a choice has left
  bool has_finished_ = false;
};

}  // namespace aludel
