#include "server/gateway/openai/answer/kept_answer.h"

#include "absl/strings/str_cat.h"

namespace aludel {

void KeptAnswer::Add(size_t choice, const ChoiceDelta& delta) {
  WholeChoice& whole = choices_[choice];
  const size_t logprobs = whole.logprobs.size();
  whole.reasoning += delta.reasoning;
  whole.text += delta.text;
  whole.calls.insert(whole.calls.end(), delta.calls.begin(), delta.calls.end());
  whole.logprobs.Append(delta.logprobs);
  whole.token_ids.insert(whole.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  bytes_ += delta.reasoning.size() + delta.text.size() + whole.logprobs.size() - logprobs +
            delta.token_ids.size() * sizeof(int32_t);
  for (const ToolCall& call : delta.calls) bytes_ += call.name.size() + call.arguments.size();
}

void KeptAnswer::AddPromptLogprobs(size_t choice, const std::string& json) {
  choices_[choice].prompt_logprobs = json;
  bytes_ += json.size();
}

bool KeptAnswer::Check(size_t writer_bytes, int64_t tokens) {
  const size_t bytes = bytes_ + static_cast<size_t>(held_bytes_) + writer_bytes;
  if (too_long_ || bytes <= max_bytes_) return true;
  const char* const kept = writer_bytes > 0
                               ? " bytes that this gateway keeps of one whose last event repeats it"
                           : stream_ ? " bytes that this gateway keeps of what may become a tool call"
                                     : " bytes that this gateway keeps of one that is not streamed";
  const char* const advice = stream_ ? "ask for fewer choices or tokens"
                                     : "stream it, or ask for fewer choices, tokens or log-probabilities";
  too_long_ = Unprocessable(
      "", absl::StrCat("the answer is longer than the ", max_bytes_, kept, ", after ", tokens, " tokens of ",
                       choices_.size(), choices_.size() == 1 ? " choice" : " choices", ": ", advice));
  choices_.assign(choices_.size(), {});
  return false;
}

void KeptAnswer::Restart() {
  choices_.assign(choices_.size(), {});
  bytes_ = 0;
}

}  // namespace aludel
