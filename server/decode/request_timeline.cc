#include "server/decode/request_timeline.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {

RequestTimeline::RequestTimeline(std::string model, absl::Time received)
    : model_(std::move(model)), received_(received) {}

void RequestTimeline::Received(std::string request_id, int64_t prompt_tokens) {
  request_id_ = std::move(request_id);
  prompt_tokens_ = prompt_tokens;
}

void RequestTimeline::Adapted(std::string model) { model_ = std::move(model); }

void RequestTimeline::Planned(const Plan& plan, int64_t handed_over_tokens, int choices, absl::Time now) {
  admitted_ = now;
  plan_ = plan.kind;
  if (plan.kind != PlanKind::kLocal) format_ = plan.format;
  if (plan.framed()) handed_over_tokens_ = handed_over_tokens;
  predicted_ttft_ = plan.predicted_ttft;
  last_token_.resize(choices);
}

void RequestTimeline::AskedServer() {
  if (plan_ != PlanKind::kStored || started_) return;
  plan_ = PlanKind::kRemote;
  replanned_ = true;
}

RequestTimeline::Started RequestTimeline::FirstToken(const SequenceTimes& times,
                                                     const std::optional<ProducerSeconds>& producer,
                                                     bool fell_back, absl::StatusCode fallback,
                                                     absl::Time now) {
  Started started;
  if (plan_ == PlanKind::kRemote) {
    started.handoff = {fell_back ? fallback : absl::StatusCode::kOk, absl::ToDoubleSeconds(now - admitted_)};
  }
  if (!fell_back) started.handed_over_tokens = handed_over_tokens_;
  if (fell_back) plan_ = PlanKind::kFallback;
  started_ = true;
  started.before_admission = absl::ToDoubleSeconds(admitted_ - received_);
  stages_ = SplitFirstToken(times, producer, started.before_admission);
  started.labels = Labels();
  started.plan = plan_;
  started.prompt_tokens = prompt_tokens_;
  started.stages = stages_;
  if (!fell_back && !replanned_) started.predicted_ttft = predicted_ttft_;
  return started;
}

std::optional<double> RequestTimeline::Token(int choice, bool first, absl::Time now) {
  ++completion_tokens_;
  const absl::Time before = std::exchange(last_token_[choice], now);
  if (first) return std::nullopt;
  return absl::ToDoubleSeconds(now - before);
}

RequestTimeline::Ended RequestTimeline::End(absl::StatusCode code, absl::Time now) const {
  Ended ended{.labels = Labels(),
              .code = code,
              .seconds = absl::ToDoubleSeconds(now - received_),
              .prompt_tokens = prompt_tokens_,
              .completion_tokens = completion_tokens_};
  if (plan_ == PlanKind::kRemote && !started_) ended.handoff = {code, ended.seconds};
  return ended;
}

std::vector<Span> RequestTimeline::Spans(const RequestTrace& trace, const HandoffReport& handoff,
                                         const absl::Status& status, absl::Time now,
                                         absl::Time wall_now) const {
  const auto wall = [&](absl::Time time) { return wall_now + (time - now); };
  std::vector<Span> spans;
  spans.push_back({.context = trace.request,
                   .parent = trace.caller.span_id,
                   .name = absl::StrCat("decode ", model_),
                   .kind = Span::Kind::kServer,
                   .start = wall(received_),
                   .end = wall_now,
                   .error = status.ok() ? "" : status.ToString(),
                   .attributes = {{"gen_ai.request.model", model_},
                                  {"gen_ai.usage.input_tokens", prompt_tokens_},
                                  {"gen_ai.usage.output_tokens", completion_tokens_},
                                  {"aludel.request_id", request_id_},
                                  {"aludel.plan", std::string(Name(plan_))},
                                  {"aludel.format", format_},
                                  {"aludel.stage.queue_seconds", stages_.queue},
                                  {"aludel.stage.prefill_seconds", stages_.prefill},
                                  {"aludel.stage.encode_seconds", stages_.encode},
                                  {"aludel.stage.transfer_seconds", stages_.transfer},
                                  {"aludel.stage.reconstruct_seconds", stages_.reconstruct},
                                  {"aludel.stage.recompute_seconds", stages_.recompute},
                                  {"aludel.stage.first_decode_seconds", stages_.first_decode}}});
  if (handoff.end == absl::InfiniteFuture()) return spans;
  spans.push_back({.context = trace.handoff,
                   .parent = trace.request.span_id,
                   .name = absl::StrCat("handoff ", format_),
                   .kind = Span::Kind::kClient,
                   .start = wall(handoff.begin),
                   .end = wall(handoff.end),
                   .attributes = {{"aludel.payload_bytes", static_cast<int64_t>(handoff.usage.bytes)},
                                  {"aludel.frames", static_cast<int64_t>(handoff.usage.frames)},
                                  {"aludel.attempts", static_cast<int64_t>(handoff.attempts)},
                                  {"aludel.handed_over_tokens", handed_over_tokens_}}});
  if (plan_ == PlanKind::kFallback) spans.back().error = "the prompt was prefilled on the decode server";
  return spans;
}

}  // namespace aludel
