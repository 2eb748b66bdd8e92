#include "server/gateway/routing/answer_relay.h"

#include <utility>

namespace aludel {

AnswerRelay::Verdict AnswerRelay::Hear(const v1::GenerateEvent& event) {
  if (diverged_) return Verdict::kGoOn;
  switch (event.event_case()) {
    case v1::GenerateEvent::kStarted:
      if (!committed_) {
        told_.Started(event.started());  // sent with the first token: until then another server may take over
      } else if (!told_.SamePlan(event.started())) {
        return Diverge();
      }
      break;
    case v1::GenerateEvent::kPromptLogprobs:
      if (!committed_) observer_->OnPromptLogprobs(event.prompt_logprobs());
      break;
    case v1::GenerateEvent::kToken:
      switch (told_.Hear(event.token())) {
        case ToldAnswer::Verdict::kDiverged:
          return Diverge();
        case ToldAnswer::Verdict::kRepeated:
          break;
        case ToldAnswer::Verdict::kNews:
          TellStarted();
          if (!observer_->OnToken(event.token())) return Verdict::kUnwanted;
      }
      break;
    case v1::GenerateEvent::kFinished:
      switch (told_.Hear(event.finished())) {
        case ToldAnswer::Verdict::kDiverged:
          return Diverge();
        case ToldAnswer::Verdict::kRepeated:
          break;
        case ToldAnswer::Verdict::kNews:
          TellStarted();
          observer_->OnFinished(event.finished());
      }
      break;
    case v1::GenerateEvent::kTrace:
      observer_->OnTrace(event.trace());
      break;
    case v1::GenerateEvent::EVENT_NOT_SET:
      break;
  }
  return Verdict::kGoOn;
}

void AnswerRelay::TellStarted() {
  if (std::exchange(committed_, true)) return;
  observer_->OnStarted(told_.started());
}

bool AnswerRelay::Restart() {
  if (!observer_->Restart()) return false;
  committed_ = false;
  told_.Forget();
  return true;
}

void AnswerRelay::Repeat(v1::GenerateRequest* request) {
  told_.Repeat();
  told_.AskForPlan(request);
}

void AnswerRelay::End(const grpc::Status& status) {
  observer_->OnEnd(status);
  observer_.reset();
}

}  // namespace aludel
