#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/answer/logprobs_json.h"
#include "server/gateway/openai/reasoning/reasoning_splitter.h"
#include "server/gateway/openai/tools/tool_call.h"
#include "server/gateway/openai/tools/tool_call_parser.h"

namespace aludel {

// What one event adds to a choice.
struct ChoiceDelta {
  std::string reasoning;  // comes before any text
  std::string text;
  std::vector<ToolCall> calls;
  size_t first_call = 0;  // index of calls[0] among the choice's calls
  nlohmann::ordered_json logprobs = nullptr;
  std::vector<int32_t> token_ids;  // of this delta and of what was held back before it

  bool empty() const {
    return reasoning.empty() && text.empty() && calls.empty() && logprobs.is_null() && token_ids.empty();
  }
};

// How a choice ended, in the words of the API.
struct ChoiceEnd {
  std::string reason;                     // "stop", "length" or "tool_calls"
  nlohmann::ordered_json stop = nullptr;  // the request's own stop that did it: a string, or a token id
};

// One choice of an answer: turns the decode server's events into what a client sees of them. Not thread-safe.
class CompletionChoice {
 public:
  // Without a dialect, text stays text.
  CompletionChoice(bool chat, const Tokenizer* tokenizer, ToolCallParser::Options tools, bool token_ids,
                   ReasoningSplitter::Mode reasoning);

  // Offsets of its tokens go on behind an echo of so many characters.
  void StartAt(int64_t characters) { logprobs_.StartAt(characters); }
  ChoiceDelta OnToken(const v1::Token& token);
  ChoiceDelta OnFinished(const v1::Finished& finished);
  // The reason is empty until OnFinished.
  const ChoiceEnd& end() const { return end_; }

  // Of text that no delta has yet.
  size_t held_bytes() const { return parser_.held_bytes(); }

  // When the choice's last token came.
  std::chrono::steady_clock::time_point last_token;
  int64_t tokens = 0;
  int64_t reasoning_tokens = 0;  // of them

 private:
  void Add(ToolCallParser::Output output, ChoiceDelta* delta);

  LogprobsJson logprobs_;
  ReasoningSplitter splitter_;
  ToolCallParser parser_;
  size_t calls_ = 0;
  int32_t marker_ = -1;       // a special token that opens calls, and that has no text
  int32_t think_begin_ = -1;  // such ones around thoughts
  int32_t think_end_ = -1;
  const bool token_ids_;
  std::vector<int32_t> held_ids_;  // of tokens that no delta has yet
  ChoiceEnd end_;
};

}  // namespace aludel
