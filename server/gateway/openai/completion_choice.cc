#include "server/gateway/openai/completion_choice.h"

#include <utility>

namespace aludel {
namespace {

constexpr absl::string_view kMistralMarker = "[TOOL_CALLS]";

}  // namespace

CompletionChoice::CompletionChoice(bool chat, const Tokenizer* tokenizer, ToolCallParser::Options tools,
                                   bool token_ids)
    : logprobs_(chat, tokenizer), parser_(tools), token_ids_(token_ids) {
  if (tools.dialect != ToolDialect::kMistral) return;
  const int32_t marker = tokenizer->TokenToId(kMistralMarker);
  if (marker >= 0 && tokenizer->IsSpecial(marker)) marker_ = marker;
}

ChoiceDelta CompletionChoice::OnToken(const v1::Token& token) {
  ChoiceDelta delta;
  if (marker_ >= 0 && token.id() == marker_) Add(parser_.Push(kMistralMarker), &delta);
  Add(parser_.Push(token.text()), &delta);
  delta.logprobs = logprobs_.Make(token);
  if (token_ids_) held_ids_.push_back(token.id());
  if (!delta.empty()) delta.token_ids = std::exchange(held_ids_, {});
  return delta;
}

ChoiceDelta CompletionChoice::OnFinished(const v1::Finished& finished) {
  ChoiceDelta delta;
  Add(parser_.Push(finished.text()), &delta);
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
