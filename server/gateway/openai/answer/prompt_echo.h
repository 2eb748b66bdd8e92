#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/gateway/openai/answer/completion_choice.h"

namespace aludel {

// What an answer says of one of its prompts: OpenAI's "echo", with log-probabilities or without, and vLLM's
// "prompt_logprobs". Not thread-safe.
class PromptEcho {
 public:
  struct Options {
    std::vector<int32_t> ids;
    bool echo = false;
    std::string text;  // of the prompt, where it is echoed
    // Of each token of the prompt, the likeliest ones beside it: in the "logprobs" of an echo ...
    std::optional<int> echo_logprobs;
    std::optional<int> prompt_logprobs;  // ... and in "prompt_logprobs"
  };
  // Both must outlive the echo.
  PromptEcho(const Options* options, const Tokenizer* tokenizer)
      : options_(*options), tokenizer_(tokenizer) {}

  // The next piece; one that begins with token 1 stands for all before. Pieces of a server that breaks the protocol are
  // dropped, and so are missing from what follows.
  void Add(const v1::PromptLogprobs& piece);
  // Bytes that are kept of the pieces.
  size_t bytes() const {
    return sizeof(int32_t) * scores_.ranks_size() + 2 * sizeof(int32_t) * scores_.tokens_size();
  }
  // The pieces, once they are told.
  void Forget() { scores_ = v1::PromptLogprobs(); }
  // What comes in front of each choice's first token: the text in the first, log-probabilities in pieces. Ends where `take`
  // returns false.
  void ForEachDelta(absl::FunctionRef<bool(const ChoiceDelta&)> take) const;
  // Of the echoed text.
  int64_t characters() const;
  // vLLM's list as JSON; "": not asked for. Token 0 has null, the others an object by token id. A list of more than
  // `max_bytes` is cut a little behind them.
  std::string PromptLogprobsJson(size_t max_bytes) const;

 private:
  // What is known of token `at`, its own entry first and at most `top` others; empty for the first.
  std::vector<v1::TokenLogprob> Entries(size_t at, int top) const;

  const Options& options_;
  const Tokenizer* const tokenizer_;
  v1::PromptLogprobs scores_;  // all pieces
};

}  // namespace aludel
