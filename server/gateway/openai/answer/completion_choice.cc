#include "server/gateway/openai/answer/completion_choice.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

constexpr absl::string_view kMistralMarker = "[TOOL_CALLS]";

}  // namespace

CompletionChoice::CompletionChoice(bool chat, const Tokenizer* tokenizer, ToolCallParser::Options tools,
                                   bool token_ids, ReasoningSplitter::Mode reasoning)
    : logprobs_(chat, tokenizer), splitter_(reasoning), parser_(tools), token_ids_(token_ids) {
  const auto special = [&](absl::string_view text) {
    const int32_t id = tokenizer->TokenToId(text);
    return id >= 0 && tokenizer->IsSpecial(id) ? id : -1;
  };
  if (reasoning != ReasoningSplitter::Mode::kOff) {
    think_begin_ = special(kThinkBegin);
    think_end_ = special(kThinkEnd);
  }
  if (tools.dialect != ToolDialect::kMistral) return;
  marker_ = special(kMistralMarker);
}

ChoiceDelta CompletionChoice::OnToken(const v1::Token& token) {
  ChoiceDelta delta;
  if (marker_ >= 0 && token.id() == marker_) Add(parser_.Push(kMistralMarker), &delta);
  if (splitter_.inside()) ++reasoning_tokens;
  // Special ones have no text.
  const absl::string_view mark = token.id() == think_begin_ ? kThinkBegin
                                 : token.id() == think_end_ ? kThinkEnd
                                                            : "";
  ReasoningSplitter::Output split = splitter_.Push(absl::StrCat(mark, token.text()));
  delta.reasoning = std::move(split.reasoning);
  Add(parser_.Push(split.text), &delta);
  delta.logprobs = logprobs_.Make(token);
  if (token_ids_) held_ids_.push_back(token.id());
  if (!delta.empty()) delta.token_ids = std::exchange(held_ids_, {});
  return delta;
}

ChoiceDelta CompletionChoice::OnFinished(const v1::Finished& finished) {
  ChoiceDelta delta;
  for (ReasoningSplitter::Output split : {splitter_.Push(finished.text()), splitter_.Finish()}) {
    delta.reasoning += split.reasoning;
    Add(parser_.Push(split.text), &delta);
  }
  Add(parser_.Finish(), &delta);
  delta.token_ids = std::exchange(held_ids_, {});
  end_.reason = parser_.calls() > 0 && finished.reason() == "stop" ? "tool_calls" : finished.reason();
  if (finished.has_stop_string()) end_.stop = finished.stop_string();
  if (finished.has_stop_token()) end_.stop = finished.stop_token();
  return delta;
}

void CompletionChoice::Add(ToolCallParser::Output output, ChoiceDelta* delta) {
  if (delta->calls.empty()) delta->first_call = calls_;
  calls_ += output.calls.size();
  delta->text += output.text;
  for (ToolCall& call : output.calls) delta->calls.push_back(std::move(call));
}

}  // namespace aludel
