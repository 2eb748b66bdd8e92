#include "server/gateway/openai/answer/completion_meter.h"

#include <utility>

namespace aludel {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

double CompletionMeter::SecondsSinceReceived() const { return Seconds(Clock::now() - options_.received); }

void CompletionMeter::OnStarted(const v1::Started& started) {
  started_ = started;
  if (!has_text_) first_token_seconds_ = SecondsSinceReceived();
}

void CompletionMeter::OnToken(CompletionChoice* choice) {
  const Clock::time_point now = Clock::now();
  if (choice->tokens++ > 0) metrics_->ObserveInterToken(options_.model, Seconds(now - choice->last_token));
  choice->last_token = now;
  ++tokens_;
}

bool CompletionMeter::OnText() {
  if (std::exchange(has_text_, true)) return false;
  first_text_seconds_ = SecondsSinceReceived();
  return true;
}

void CompletionMeter::Restart() {
  started_.Clear();
  trace_.reset();
  has_text_ = false;
  tokens_ = 0;
}

CompletionReport CompletionMeter::Report() const {
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

CompletionOutcome CompletionMeter::Outcome(const ApiError* error,
                                           const std::vector<CompletionChoice>& choices,
                                           const CompletionReport& report) const {
  CompletionOutcome outcome = options_.outcome;
  outcome.status = error == nullptr ? 200 : error->status;
  outcome.name = OutcomeName(outcome.status);
  if (error != nullptr) outcome.error = error->message;
  outcome.completion_id = options_.id;
  for (const CompletionChoice& choice : choices) outcome.finish_reasons.push_back(choice.end().reason);
  outcome.has_first_token = has_text_;
  outcome.completion_tokens = tokens_;
  outcome.started = started_;
  if (has_text_) {
    outcome.ttft_seconds = report.ttft_seconds;
    outcome.held_seconds = report.held_seconds;
    outcome.gateway_seconds = report.gateway_seconds();
  }
  outcome.seconds = SecondsSinceReceived();
  return outcome;
}

void CompletionMeter::End(const ApiError* error, const std::vector<CompletionChoice>& choices) const {
  const RequestLabels labels = {options_.model, started_.plan(), started_.format()};
  const CompletionReport report = Report();
  const v1::Stages& stages = started_.stages();
  if (has_text_) {
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
  } else if (error != nullptr) {
    metrics_->ObserveUnanswered(options_.model, SecondsSinceReceived());
  }
  const CompletionOutcome outcome = Outcome(error, choices, report);
  metrics_->ObserveRequest(labels, outcome.name, outcome.seconds, outcome.prompt_tokens, tokens_);
  if (has_text_) {
    const double first_token = outcome.ttft_seconds - outcome.held_seconds;
    metrics_->ObservePhases(labels, stages.queue(), first_token - stages.queue(),
                            outcome.seconds - first_token, tokens_);
  }
  if (options_.on_end) options_.on_end(outcome);
}

}  // namespace aludel
