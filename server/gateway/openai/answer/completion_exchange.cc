#include "server/gateway/openai/answer/completion_exchange.h"

#include <functional>
#include <utility>
#include <vector>

#include "server/gateway/openai/grpc_error.h"

namespace aludel {
namespace {

std::vector<CompletionChoice> NewChoices(const CompletionExchange::Options& options, size_t count) {
  return std::vector<CompletionChoice>(count, CompletionChoice(options.chat, options.tokenizer, options.tools,
                                                               options.return_token_ids, options.reasoning));
}

// What is told of one prompt, once it was told.
void ForgetScores(PromptEcho* echo, KeptAnswer* kept) {
  kept->Hold(-static_cast<int64_t>(echo->bytes()));
  echo->Forget();
}

// Why an answer that is not whole ended.
ApiError ErrorOf(const KeptAnswer& kept, const grpc::Status& status) {
  if (kept.too_long()) return *kept.too_long();
  if (!status.ok()) return FromGrpcStatus(status);
  return FromGrpcStatus({grpc::StatusCode::INTERNAL, "the decode server ended its answer early"});
}

}  // namespace

CompletionExchange::CompletionExchange(Options options, CompletionMeter::Options measured,
                                       HttpResponder responder, const RequestMetrics* metrics)
    : options_(std::move(options)),
      responder_(std::move(responder)),
      meter_(std::move(measured), metrics),
      kept_(all_choices(), meter_.stream(), options_.max_answer_bytes),
      choices_(NewChoices(options_, all_choices())),
      open_choices_(all_choices()) {
  for (const PromptEcho::Options& prompt : options_.prompts) {
    echoes_.emplace_back(&prompt, options_.tokenizer);
  }
}

bool CompletionExchange::Restart() {
  if (has_content_ || has_finished_) return false;
  meter_.Restart();
  kept_.Restart();
  for (const CompletionChoice& choice : choices_) kept_.Hold(-static_cast<int64_t>(choice.held_bytes()));
  choices_ = NewChoices(options_, all_choices());
  open_choices_ = all_choices();
  usage_ = {};
  stored_tokens_ = 0;
  return true;
}

void CompletionExchange::OnStarted(size_t prompt, const v1::Started& started) {
  meter_.OnStarted(started);
  // The head of an answer that began anew has left: it tells of the first plan, the last chunk of the
  // last one.
  if (!std::exchange(has_started_, true) && meter_.stream()) {
    responder_.StartStream(200, "text/event-stream; charset=utf-8", ReportHeaders(started));
    responder_.Write(options_.writer->Start(started));
  }
  TellPrompt(prompt);
}

void CompletionExchange::OnPromptLogprobs(size_t prompt, const v1::PromptLogprobs& piece) {
  if (too_long()) return;
  PromptEcho& echo = echoes_[prompt];
  const auto before = static_cast<int64_t>(echo.bytes());
  echo.Add(piece);
  kept_.Hold(static_cast<int64_t>(echo.bytes()) - before);
  CheckLength();
}

void CompletionExchange::TellPrompt(size_t prompt) {
  PromptEcho& echo = echoes_[prompt];
  if (meter_.stream()) responder_.Write(options_.writer->StartPrompt(prompt));
  const auto begin = static_cast<uint32_t>(prompt * options_.choices);
  const uint32_t end = begin + options_.choices;
  const int64_t characters = echo.characters();
  for (uint32_t choice = begin; choice < end; ++choice) choices_[choice].StartAt(characters);
  // Piece by piece, as all of it may be more than is kept.
  echo.ForEachDelta([&](const ChoiceDelta& delta) {
    for (uint32_t choice = begin; choice < end && !too_long(); ++choice) {
      Emit(choice, delta);
      CheckLength();
    }
    return !too_long();
  });
  if (meter_.stream() || too_long()) return ForgetScores(&echo, &kept_);
  const std::string logprobs = echo.PromptLogprobsJson(kept_.room());
  for (uint32_t choice = begin; choice < (options_.chat ? begin + 1 : end) && !too_long(); ++choice) {
    kept_.AddPromptLogprobs(choice, logprobs);
    CheckLength();
  }
  ForgetScores(&echo, &kept_);
}

bool CompletionExchange::OnToken(const v1::Token& token) {
  if (too_long()) return false;
  // From a server that breaks the protocol.
  if (token.choice() >= choices_.size() || has_finished_) return true;
  CompletionChoice& choice = choices_[token.choice()];
  meter_.OnToken(&choice);
  const size_t held = choice.held_bytes();
  Tell(token.choice(), held, choice.OnToken(token));
  return !too_long();
}

void CompletionExchange::Tell(uint32_t choice, size_t held, const ChoiceDelta& delta) {
  Emit(choice, delta);
  kept_.Hold(static_cast<int64_t>(choices_[choice].held_bytes()) - static_cast<int64_t>(held));
  CheckLength();
}

void CompletionExchange::Emit(uint32_t choice, const ChoiceDelta& delta) {
  if (delta.empty()) return;
  const bool first = meter_.OnText();
  if (!meter_.stream()) return kept_.Add(choice, delta);
  has_content_ = true;
  std::function<void()> flushed;
  if (first) {
    flushed = [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->meter_.Flushed();
    };
  }
  // A client that is gone cancels the call through OnDisconnect; what is still on its way is dropped here.
  responder_.Write(options_.writer->Delta(static_cast<int>(choice), delta), std::move(flushed));
}

void CompletionExchange::CheckLength() {
  if (kept_.Check(options_.writer->kept_bytes(), meter_.tokens())) return;
  for (PromptEcho& echo : echoes_) ForgetScores(&echo, &kept_);
}

void CompletionExchange::OnFinished(const v1::Finished& finished) {
  if (finished.choice() >= choices_.size() || too_long()) return;
  CompletionChoice& choice = choices_[finished.choice()];
  if (!choice.end().reason.empty()) return;
  const size_t held = choice.held_bytes();
  Tell(finished.choice(), held, choice.OnFinished(finished));
  // Choices of one prompt share it.
  if (finished.choice() % options_.choices == 0) {
    usage_.prompt_tokens += finished.prompt_tokens();
    stored_tokens_ += finished.stored_tokens();
  }
  usage_.completion_tokens += finished.completion_tokens();
  usage_.reasoning_tokens += choice.reasoning_tokens;
  if (too_long()) return;  // by its last text
  if (--open_choices_ == 0) {
    Complete(finished.choice());
  } else if (meter_.stream()) {
    has_content_ = true;
    responder_.Write(options_.writer->End(static_cast<int>(finished.choice()), choice.end()));
  }
}

void CompletionExchange::Complete(uint32_t last) {
  has_finished_ = true;
  meter_.End(/*error=*/nullptr, choices_);
  CompletionReport report = meter_.Report();
  report.started.set_stored_tokens(stored_tokens_);  // the last word, where Started came too early
  if (meter_.stream()) {
    responder_.Write(options_.writer->Complete(static_cast<int>(last), choices_[last].end(), usage_, report));
    responder_.Finish();
    return;
  }
  for (size_t i = 0; i < choices_.size(); ++i) kept_.SetEnd(i, choices_[i].end());
  HttpResponse response;
  response.headers = ReportHeaders(report.started);
  response.body = options_.writer->Whole(kept_.Take(), usage_, report);
  responder_.Respond(std::move(response));
}

void CompletionExchange::OnEnd(const grpc::Status& status) {
  if (has_finished_) return;
  const ApiError error = ErrorOf(kept_, status);
  meter_.End(&error, choices_);
  if (meter_.stream() && has_started_) {
    // The status line has been sent: the error goes into the stream, which then ends.
    responder_.Write(options_.writer->Fail(error));
    responder_.Finish();
  } else {
    responder_.Respond(options_.dialect->Refusal(error));
  }
}

}  // namespace aludel
