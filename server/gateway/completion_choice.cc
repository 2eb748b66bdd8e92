#include "server/gateway/completion_choice.h"

namespace aludel {

ChoiceDelta CompletionChoice::OnToken(const v1::Token& token) {
  ChoiceDelta delta;
  delta.text = token.text();
  delta.logprobs = logprobs_.Make(token);
  return delta;
}

ChoiceDelta CompletionChoice::OnFinished(const v1::Finished& finished) {
  finish_reason_ = finished.reason();
  ChoiceDelta delta;
  delta.text = finished.text();
  return delta;
}

}  // namespace aludel
