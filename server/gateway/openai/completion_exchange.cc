#include "server/gateway/openai/completion_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

ApiError FromGrpcStatus(const grpc::Status& status) {
  ApiError error;
  error.message = status.error_message();
  error.type = "server_error";
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::OUT_OF_RANGE:
      error.status = 400;
      error.type = "invalid_request_error";
      break;
    case grpc::StatusCode::FAILED_PRECONDITION:
      return Unprocessable("", status.error_message());
    case grpc::StatusCode::NOT_FOUND:
      error.status = 404;
      error.type = "invalid_request_error";
      break;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      error.status = 429;
      error.type = "rate_limit_error";
      // The waiting room says when; a decode server does not.
      if (!absl::SimpleAtoi(status.error_details(), &error.retry_after_seconds))
        error.retry_after_seconds = 1;
      break;
    case grpc::StatusCode::CANCELLED:
      error.status = 499;
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      error.status = 504;
      // gRPC's own words where its timer was first.
      if (error.message == "Deadline Exceeded") {
        error.message =
            "the request was not answered before its deadline: 'aludel.timeout_ms', or the gateway's "
            "request_timeout_ms";
      }
      break;
    case grpc::StatusCode::UNAVAILABLE:
      error.status = 503;
      error.retry_after_seconds = 1;
      break;
    default:
      error.status = 500;
  }
  error.code = OutcomeName(error.status);
  return error;
}

CompletionExchange::CompletionExchange(Options options, HttpResponder responder,
                                       const RequestMetrics* metrics)
    : options_(std::move(options)),
      responder_(std::move(responder)),
      metrics_(metrics),
      choices_(NewChoices()),
      whole_(all_choices()),
      open_choices_(all_choices()) {
  for (const PromptEcho::Options& prompt : options_.prompts) {
    echoes_.emplace_back(&prompt, options_.tokenizer);
  }
}

std::vector<CompletionChoice> CompletionExchange::NewChoices() const {
  return std::vector<CompletionChoice>(all_choices(),
                                       CompletionChoice(options_.chat, options_.tokenizer, options_.tools,
                                                        options_.return_token_ids, options_.reasoning));
}

bool CompletionExchange::Restart() {
  if (has_content_) return false;
  started_.Clear();
  trace_.reset();
  choices_ = NewChoices();
  whole_ = std::vector<WholeChoice>(all_choices());
  whole_bytes_ = 0;
  held_bytes_ = 0;
  open_choices_ = all_choices();
  usage_ = {};
  has_text_ = false;
  tokens_ = 0;
  return true;
}

double CompletionExchange::SecondsSinceReceived() const { return Seconds(Clock::now() - options_.received); }

void CompletionExchange::OnStarted(size_t prompt, const v1::Started& started) {
  started_ = started;
  if (!has_text_) first_token_seconds_ = SecondsSinceReceived();
  // The head of an answer that began anew has left: it tells of the first plan, the last chunk of the
  // last one.
  if (!std::exchange(has_started_, true) && options_.outcome.stream) {
    responder_.StartStream(200, "text/event-stream; charset=utf-8", ReportHeaders(started_));
    if (const std::string events = options_.writer->Start(started_); !events.empty())
      responder_.Write(events);
  }
  TellPrompt(prompt);
}

void CompletionExchange::OnPromptLogprobs(size_t prompt, const v1::PromptLogprobs& piece) {
  if (too_long_) return;
  PromptEcho& echo = echoes_[prompt];
  score_bytes_ -= echo.bytes();
  echo.Add(piece);
  score_bytes_ += echo.bytes();
  CheckLength();
}

void CompletionExchange::ForgetScores(PromptEcho* echo) {
  score_bytes_ -= echo->bytes();
  echo->Forget();
}

void CompletionExchange::TellPrompt(size_t prompt) {
  PromptEcho& echo = echoes_[prompt];
  const bool stream = options_.outcome.stream;
  if (stream) {
    const std::string events = options_.writer->StartPrompt(prompt);
    if (!events.empty()) responder_.Write(events);
  }
  const auto begin = static_cast<uint32_t>(prompt * options_.choices);
  const uint32_t end = begin + options_.choices;
  const int64_t characters = echo.characters();
  for (uint32_t choice = begin; choice < end; ++choice) choices_[choice].StartAt(characters);
  // Piece by piece, as all of it may be more than is kept.
  echo.ForEachDelta([&](const ChoiceDelta& delta) {
    for (uint32_t choice = begin; choice < end && !too_long_; ++choice) {
      Emit(choice, delta);
      CheckLength();
    }
    return !too_long_.has_value();
  });
  if (stream || too_long_) return ForgetScores(&echo);
  const std::string logprobs =
      echo.PromptLogprobsJson(options_.max_answer_bytes - std::min(whole_bytes_, options_.max_answer_bytes));
  for (uint32_t choice = begin; choice < (options_.chat ? begin + 1 : end) && !too_long_; ++choice) {
    whole_[choice].prompt_logprobs = logprobs;
    whole_bytes_ += logprobs.size();
    CheckLength();
  }
  ForgetScores(&echo);
}

bool CompletionExchange::OnToken(const v1::Token& token) {
  if (too_long_) return false;
  // From a server that breaks the protocol.
  if (token.choice() >= choices_.size() || has_finished_) return true;
  CompletionChoice& choice = choices_[token.choice()];
  const Clock::time_point now = Clock::now();
  if (choice.tokens++ > 0) {
    metrics_->ObserveInterToken(options_.model, Seconds(now - choice.last_token));
  }
  choice.last_token = now;
  ++tokens_;
  held_bytes_ -= choice.held_bytes();
  Emit(token.choice(), choice.OnToken(token));
  held_bytes_ += choice.held_bytes();
  CheckLength();
  return !too_long_;
}

void CompletionExchange::Emit(uint32_t choice, const ChoiceDelta& delta) {
  if (delta.empty()) return;
  const bool first = !std::exchange(has_text_, true);
  if (first) first_text_seconds_ = SecondsSinceReceived();
  if (!options_.outcome.stream) return Keep(choice, delta);
  has_content_ = true;
  std::function<void()> flushed;
  if (first) {
    flushed = [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->first_flush_seconds_ = self->SecondsSinceReceived();
    };
  }
  // A client that is gone cancels the call through OnDisconnect; what is still on its way is dropped here.
  responder_.Write(options_.writer->Delta(static_cast<int>(choice), delta), std::move(flushed));
}

void CompletionExchange::Keep(uint32_t choice, const ChoiceDelta& delta) {
  WholeChoice& whole = whole_[choice];
  const size_t logprobs = whole.logprobs.size();
  whole.reasoning += delta.reasoning;
  whole.text += delta.text;
  whole.calls.insert(whole.calls.end(), delta.calls.begin(), delta.calls.end());
  whole.logprobs.Append(delta.logprobs);
  whole.token_ids.insert(whole.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  whole_bytes_ += delta.reasoning.size() + delta.text.size() + whole.logprobs.size() - logprobs +
                  delta.token_ids.size() * sizeof(int32_t);
  for (const ToolCall& call : delta.calls) whole_bytes_ += call.name.size() + call.arguments.size();
}

void CompletionExchange::CheckLength() {
  const size_t bytes = whole_bytes_ + held_bytes_ + score_bytes_ + options_.writer->kept_bytes();
  if (too_long_ || bytes <= options_.max_answer_bytes) return;
  const char* const kept =
      options_.writer->kept_bytes() > 0 ? " bytes that this gateway keeps of one whose last event repeats it"
      : options_.outcome.stream         ? " bytes that this gateway keeps of what may become a tool call"
                                        : " bytes that this gateway keeps of one that is not streamed";
  const char* const advice = options_.outcome.stream
                                 ? "ask for fewer choices or tokens"
                                 : "stream it, or ask for fewer choices, tokens or log-probabilities";
  too_long_ = Unprocessable("", absl::StrCat("the answer is longer than the ", options_.max_answer_bytes,
                                             kept, ", after ", tokens_, " tokens of ", all_choices(),
                                             all_choices() == 1 ? " choice" : " choices", ": ", advice));
  whole_.assign(all_choices(), {});
  for (PromptEcho& echo : echoes_) ForgetScores(&echo);
}

CompletionReport CompletionExchange::Report() {
  CompletionReport report;
  report.started = started_;
  if (trace_) report.trace = &*trace_;
  // An answer may end before the I/O thread has reported its first flush; then the token's arrival here
  // is used.
  const double flushed = first_flush_seconds_;
  report.ttft_seconds = flushed >= 0 ? flushed : has_text_ ? first_text_seconds_ : SecondsSinceReceived();
  if (has_text_) report.held_seconds = first_text_seconds_ - first_token_seconds_;
  return report;
}

void CompletionExchange::OnFinished(const v1::Finished& finished) {
  if (finished.choice() >= choices_.size() || too_long_) return;
  CompletionChoice& choice = choices_[finished.choice()];
  if (!choice.end().reason.empty()) return;
  held_bytes_ -= choice.held_bytes();
  Emit(finished.choice(), choice.OnFinished(finished));
  held_bytes_ += choice.held_bytes();
  CheckLength();
  // Choices of one prompt share it.
  if (finished.choice() % options_.choices == 0) usage_.prompt_tokens += finished.prompt_tokens();
  usage_.completion_tokens += finished.completion_tokens();
  usage_.reasoning_tokens += choice.reasoning_tokens;
  if (too_long_) return;  // by its last text
  if (--open_choices_ == 0) {
    Complete(finished.choice());
  } else if (options_.outcome.stream) {
    has_content_ = true;
    responder_.Write(options_.writer->End(static_cast<int>(finished.choice()), choice.end()));
  }
}

void CompletionExchange::Complete(uint32_t last) {
  has_finished_ = true;
  ApiError none;
  none.status = 200;
  Account(none);
  const CompletionReport report = Report();
  if (options_.outcome.stream) {
    responder_.Write(options_.writer->Complete(static_cast<int>(last), choices_[last].end(), usage_, report));
    responder_.Finish();
    return;
  }
  for (size_t i = 0; i < choices_.size(); ++i) whole_[i].end = choices_[i].end();
  HttpResponse response;
  response.headers = ReportHeaders(started_);
  response.body = options_.writer->Whole(whole_, usage_, report);
  whole_.clear();
  responder_.Respond(std::move(response));
}

void CompletionExchange::OnEnd(const grpc::Status& status) {
  if (has_finished_) return;
  const ApiError error =
      too_long_ ? *too_long_
                : FromGrpcStatus(status.ok() ? grpc::Status(grpc::StatusCode::INTERNAL,
                                                            "the decode server ended its answer early")
                                             : status);
  Account(error);
  if (options_.outcome.stream && has_started_) {
    // The status line has been sent: the error goes into the stream, which then ends.
    responder_.Write(options_.writer->Fail(error));
    responder_.Finish();
  } else {
    responder_.Respond(options_.dialect->Refusal(error));
  }
}

void CompletionExchange::Account(const ApiError& error) {
  const RequestLabels labels = {options_.model, started_.plan(), started_.format()};
  const CompletionReport report = Report();
  if (has_text_) {
    const v1::Stages& stages = started_.stages();
    metrics_->ObserveFirstToken(labels, {.queue = stages.queue(),
                                         .prefill = stages.prefill(),
                                         .encode = stages.encode(),
                                         .transfer = stages.transfer(),
                                         .reconstruct = stages.reconstruct(),
                                         .recompute = stages.recompute(),
                                         .first_decode = stages.first_decode(),
                                         .held = report.held_seconds,
                                         .gateway = report.gateway_seconds(),
                                         .ttft = report.ttft_seconds});
  } else if (!has_finished_) {
    metrics_->ObserveUnanswered(options_.model, SecondsSinceReceived());
  }
  CompletionOutcome outcome = options_.outcome;
  outcome.status = error.status;
  outcome.name = OutcomeName(error.status);
  outcome.error = error.message;
  outcome.completion_id = options_.id;
  for (const CompletionChoice& choice : choices_) outcome.finish_reasons.push_back(choice.end().reason);
  outcome.has_first_token = has_text_;
  outcome.completion_tokens = tokens_;
  outcome.started = started_;
  if (has_text_) {
    outcome.ttft_seconds = report.ttft_seconds;
    outcome.held_seconds = report.held_seconds;
    outcome.gateway_seconds = report.gateway_seconds();
  }
  outcome.seconds = SecondsSinceReceived();
  metrics_->ObserveRequest(labels, outcome.name, outcome.seconds, options_.outcome.prompt_tokens, tokens_);
  if (has_text_) {
    const double queue = started_.stages().queue();
    const double first_token = outcome.ttft_seconds - outcome.held_seconds;
    metrics_->ObservePhases(labels, queue, first_token - queue, outcome.seconds - first_token, tokens_);
  }
  if (options_.on_end) options_.on_end(outcome);
}

}  // namespace aludel
