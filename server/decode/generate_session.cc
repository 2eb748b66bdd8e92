#include "server/decode/generate_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"
#include "server/decode/generate_events.h"
#include "server/decode/generate_setup.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_fields.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/workflow_fields.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// The prefill server's account of a short prompt may come after a short answer; a trace waits for it.
constexpr absl::Duration kAccountPatience = absl::Milliseconds(300);
constexpr absl::Duration kAccountLook = absl::Milliseconds(5);

std::optional<RequestTrace> TraceWithin(const std::optional<TraceContext>& caller) {
  if (!caller) return std::nullopt;
  const TraceContext request = caller->NewChild();
  return RequestTrace{*caller, request, request.NewChild()};
}

}  // namespace

GenerateSession::GenerateSession(const DecodeContext& context, std::shared_ptr<AnswerStream::Stream> stream,
                                 absl::Time deadline, const std::optional<TraceContext>& caller,
                                 v1::PromptPrefixes prefixes)
    : context_(context),
      answer_(std::move(stream), context.options->max_stream_backlog, context.timer),
      deadline_(deadline),
      trace_(TraceWithin(caller)),
      planner_(context),
      prefixes_(std::move(prefixes)),
      timeline_(context.options->served_model_name, MonotonicNow()) {
  context_.sessions_open->fetch_add(1);
}

GenerateSession::~GenerateSession() {
  planner_.Close();
  adapter_ = {};
  context_.sessions_open->fetch_sub(1);  // last: the context may go
}

void GenerateSession::Start(const v1::GenerateRequest& request) {
  // Before anything logs or keeps them.
  absl::Status status = CheckRequestId(request.request_id());
  if (status.ok()) status = CheckCacheSalt(request.cache_salt());
  if (status.ok() && request.has_workflow()) status = CheckWorkflow(request.workflow());
  if (status.ok()) request_id_ = request.request_id();
  cache_salt_ = context_.cache_epoch->Salt(request.cache_salt());
  {
    absl::MutexLock lock(&mutex_);
    timeline_.Received(request_id_, request.prompt_size());
  }
  if (!status.ok()) return End(status);
  if (request.adapter().empty()) return Constrain(request);
  const auto kept = std::make_shared<const v1::GenerateRequest>(request);
  const uint64_t wait = context_.adapters->Acquire(
      request.adapter(), deadline_,
      [self = shared_from_this(), kept](absl::StatusOr<AdapterPool::Handle> adapter) {
        if (!adapter.ok()) return self->End(adapter.status());
        const std::optional<int64_t> begin = (*adapter)->ActsFrom(kept->prompt());
        if (begin) self->adapter_ = {*std::move(adapter), *begin};
        {
          absl::MutexLock lock(&self->mutex_);
          self->timeline_.Adapted(kept->adapter());
        }
        self->Constrain(*kept);
      });
  absl::Status stopped;
  {
    absl::MutexLock lock(&mutex_);
    adapter_wait_ = wait;
    stopped = stopped_;
  }
  if (!stopped.ok()) context_.adapters->GiveUp(wait, stopped);
}

void GenerateSession::Constrain(const v1::GenerateRequest& request) {
  if (!request.has_constraint()) return Begin(request, /*constraint=*/nullptr);
  // gRPC's copy of the request is not ours to keep.
  const auto kept = std::make_shared<const v1::GenerateRequest>(request);
  const auto wait = context_.constraints->Make(
      [self = shared_from_this(), kept](absl::StatusOr<std::shared_ptr<TokenAutomaton>> constraint) {
        if (!constraint.ok()) return self->End(constraint.status());
        self->Begin(*kept, *std::move(constraint));
      });
  {
    absl::MutexLock lock(&mutex_);
    constraint_wait_ = wait;
  }
  context_.constraints->Begin(wait, ConstraintOf(kept->constraint()), deadline_);
}

void GenerateSession::Begin(const v1::GenerateRequest& request, std::shared_ptr<TokenAutomaton> constraint) {
  const PlanRequest wanted = ReadPlanRequest(request);
  absl::StatusOr<Plan> plan = planner_.Choose(wanted, request.prompt(), cache_salt_, adapter_);
  if (request.trace()) {
    answer_trace_ = std::make_unique<v1::RequestTrace>();
    for (v1::PlanOption& option : planner_.Options(request.prompt(), cache_salt_, adapter_)) {
      *answer_trace_->add_options() = std::move(option);
    }
  }
  const absl::Status status =
      plan.ok() ? Admit(request, wanted, *plan, std::move(constraint)) : plan.status();
  if (!status.ok()) End(status);
}

absl::Status GenerateSession::Admit(const v1::GenerateRequest& request, const PlanRequest& wanted,
                                    const Plan& chosen, std::shared_ptr<TokenAutomaton> constraint) {
  ALUDEL_ASSIGN_OR_RETURN(GenerateSetup setup, SetUpGenerate(context_, planner_, request, cache_salt_, chosen,
                                                             adapter_, deadline_, std::move(constraint)));
  adapter_ = {};  // the engine holds it
  const Plan& plan = setup.plan;
  shown_logprobs_ = setup.shown_logprobs;
  shadow_ = std::move(setup.shadow);
  if (answer_trace_ != nullptr) answer_trace_->set_reason(Name(plan.reason));
  if (plan.reason == PlanReason::kAdapter) {
    local_reason_ = absl::StrCat("no decoder here is for adapter ", request.adapter());
  }
  if (plan.framed()) {
    handoff_ =
        std::make_shared<Handoff>(context_, MakeHandoffSpec(context_, request, wanted, setup, deadline_,
                                                            trace_ ? trace_->handoff.ToTraceparent() : ""));
  }
  {
    const int choices = setup.spec.sampling.choices;
    absl::MutexLock lock(&mutex_);
    open_choices_ = choices;
    timeline_.Planned(plan, setup.framed_tokens(), choices, MonotonicNow());
  }
  planner_.Begin(plan, request.prompt_size());
  ALUDEL_ASSIGN_OR_RETURN(const SequenceId sequence,
                          context_.model->engine().Generate(std::move(setup.spec), shared_from_this()));
  if (prefixes_.keys_size() > 0) context_.load->prefixes().Add(std::move(prefixes_));
  context_.metrics->CountPlan(Name(plan.kind), Name(plan.reason));
  absl::Status stopped;
  {
    absl::MutexLock lock(&mutex_);
    sequence_ = sequence;
    stopped = stopped_;
  }
  if (!stopped.ok()) {
    context_.model->engine().Cancel(sequence, stopped);
  } else if (handoff_ != nullptr) {
    handoff_->Begin(sequence, plan.target, std::move(setup.extent));
  }
  return absl::OkStatus();
}

void GenerateSession::EndHandoff(TicketState end) {
  if (handoff_ != nullptr) handoff_->End(end);
}

void GenerateSession::Stop(const absl::Status& reason) {
  SequenceId sequence = 0;
  uint64_t adapter_wait = 0;
  std::shared_ptr<ConstraintCache::Wait> wait;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || !stopped_.ok()) return;
    stopped_ = reason;
    sequence = sequence_;
    adapter_wait = adapter_wait_;
    wait = constraint_wait_.lock();
  }
  if (adapter_wait != 0) context_.adapters->GiveUp(adapter_wait, reason);  // the session ends with it
  if (wait != nullptr) wait->Stop(reason);                                 // the session ends with it
  if (sequence != 0) context_.model->engine().Cancel(sequence, reason);
}

void GenerateSession::SendStarted(const SequenceTimes& times, int64_t cached_tokens, bool fell_back,
                                  const absl::Status& fallback_reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (timeline_.started()) return;
  }
  if (handoff_ != nullptr && handoff_->trace() != nullptr) handoff_->trace()->FirstToken(MonotonicNow());
  if (handoff_ != nullptr && fell_back) handoff_->Rejected(fallback_reason);
  // The cache is complete: frames that still come are late.
  EndHandoff(fell_back ? TicketState::kAbandoned : TicketState::kCompleted);

  const Handoff::Report handoff = handoff_ == nullptr ? Handoff::Report{} : handoff_->report();
  RequestTimeline::Started started;
  double predicted_ttft = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (handoff.asked_server) timeline_.AskedServer();
    started =
        timeline_.FirstToken(times, handoff.producer, fell_back, fallback_reason.code(), MonotonicNow());
    predicted_ttft = timeline_.predicted_ttft();
  }
  if (fell_back) {
    context_.metrics->CountFallback(StatusName(fallback_reason.code()));
    spdlog::warn("request={} was prefilled here: {}", request_id_, fallback_reason.ToString());
  }
  CountHandoff(started.handoff);
  context_.metrics->requests.ObserveFirstToken(started.labels, started.stages);
  planner_.Learn(started, times, cached_tokens, handoff_.get());

  const ModelConfig& config = context_.model->config();
  StartedFigures figures{.predicted_ttft = predicted_ttft,
                         .payload_bytes = handoff.usage.bytes,
                         .raw_bytes_per_token = uint64_t{2} * config.layers * config.kv_dim() * 2,
                         .cached_tokens = cached_tokens,
                         .stored_tokens = fell_back ? 0 : handoff.cached_tokens};
  figures.fallback_reason = fell_back ? fallback_reason.ToString() : local_reason_;
  answer_.Push(StartedEvent(started, figures)).IgnoreError();  // its first token hears of it
}

void GenerateSession::CountHandoff(const std::optional<RequestTimeline::HandoffOutcome>& handoff) {
  if (handoff)
    context_.metrics->handoffs.CountHandoff("received", StatusName(handoff->code), handoff->seconds);
}

void GenerateSession::OnToken(const TokenEvent& event) {
  const absl::Time now = MonotonicNow();
  SendStarted(event.times, event.cached_tokens, event.fell_back, event.fallback_reason);
  std::optional<double> since_last;
  {
    absl::MutexLock lock(&mutex_);
    since_last = timeline_.Token(event.choice, event.first, now);
  }
  if (since_last)
    context_.metrics->requests.ObserveInterToken(context_.options->served_model_name, *since_last);
  if (shadow_) shadow_->Keep(event);
  const absl::Status delivered = answer_.Push(AnswerEvent(event, shown_logprobs_));
  if (!delivered.ok()) Stop(delivered);
}

void GenerateSession::OnPromptScores(const PromptScores& scores) {
  const absl::Status delivered = answer_.Push(AnswerEvent(scores));
  if (!delivered.ok()) Stop(delivered);
}

void GenerateSession::OnUpgraded(const absl::Status& status, int64_t completion_tokens) {
  handoff_->Upgraded(status, completion_tokens);
}

absl::Status GenerateSession::DeliverTrace() {
  if (answer_trace_ == nullptr) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    if (open_choices_ > 1) return absl::OkStatus();
  }
  v1::GenerateEvent event;
  event.mutable_trace()->Swap(answer_trace_.get());
  if (handoff_ != nullptr && handoff_->trace() != nullptr) handoff_->trace()->Fill(event.mutable_trace());
  return answer_.Push(std::move(event));
}

void GenerateSession::OnDone(const absl::Status& status, const SequenceResult& result) {
  EndHandoff(TicketState::kAbandoned);
  if (shadow_ && status.ok() && !result.fell_back) context_.shadow->Offer(*std::move(shadow_));
  if (status.ok()) {
    // An answer may have no token at all.
    SendStarted(result.times, result.cached_tokens, result.fell_back, result.fallback_reason);
    if (!result.fell_back && LacksAccount()) return AwaitAccount(result, MonotonicNow() + kAccountPatience);
  }
  Conclude(status, result);
}

bool GenerateSession::LacksAccount() {
  if (handoff_ == nullptr || handoff_->report().producer) return false;
  absl::MutexLock lock(&mutex_);
  return stopped_.ok();
}

void GenerateSession::AwaitAccount(const SequenceResult& result, absl::Time until) {
  context_.timer->At(std::min(until, MonotonicNow() + kAccountLook),
                     [self = shared_from_this(), result, until] {
                       if (MonotonicNow() < until && self->LacksAccount())
                         return self->AwaitAccount(result, until);
                       self->Conclude(absl::OkStatus(), result);
                     });
}

void GenerateSession::Conclude(const absl::Status& status, const SequenceResult& result) {
  absl::Status lost;
  int open = 0;
  {
    absl::MutexLock concluding(&conclude_mutex_);
    if (status.ok()) {
      absl::Status delivered = DeliverTrace();
      const bool handed_over = handoff_ != nullptr && !result.fell_back;
      if (delivered.ok())
        delivered = answer_.Push(AnswerEvent(result, handed_over ? handoff_->report().cached_tokens : 0));
      if (!delivered.ok()) lost_ = delivered;
    } else {
      if (lost_.ok()) lost_ = status;
    }
    lost = lost_;
    absl::MutexLock lock(&mutex_);
    open = --open_choices_;
  }
  if (open == 0) return End(lost);
  // If one choice fails, cancel the others.
  if (!lost.ok()) Stop(lost);
}

void GenerateSession::End(const absl::Status& status) {
  RequestTimeline::Ended ended;
  bool answering = false;
  const bool asked_server = handoff_ != nullptr && handoff_->report().asked_server;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    if (asked_server) timeline_.AskedServer();
    ended = timeline_.End(status.code(), MonotonicNow());
    answering = timeline_.started();
  }
  planner_.Release();
  context_.metrics->requests.ObserveRequest(ended.labels, StatusName(ended.code), ended.seconds,
                                            ended.prompt_tokens, ended.completion_tokens);
  // Of a request that ends before its first token. One that was refused has asked no prefill server.
  if (handoff_ != nullptr && handoff_->report().attempts > 0) CountHandoff(ended.handoff);
  // The gateway logs refusals, and no more of them than an operator can read.
  const bool refused = absl::IsResourceExhausted(status) && !answering;
  spdlog::log(status.ok() || refused ? spdlog::level::debug : spdlog::level::info,
              "request={} ended: {} (model {}, plan {} {}, {} + {} tokens, {:.3f} s)", request_id_,
              status.ToString(), ended.labels.model, ended.labels.plan, ended.labels.format,
              ended.prompt_tokens, ended.completion_tokens, ended.seconds);
  if (context_.traces != nullptr && trace_ && trace_->request.sampled) ExportSpans(status);
  if (handoff_ != nullptr) handoff_->WriteTrace();
  answer_.End(status);
}

void GenerateSession::ExportSpans(const absl::Status& status) {
  const Handoff::Report handoff = handoff_ == nullptr ? Handoff::Report{} : handoff_->report();
  std::vector<Span> spans;
  {
    absl::MutexLock lock(&mutex_);
    spans = timeline_.Spans(*trace_, handoff, status, MonotonicNow(), absl::Now());
  }
  for (Span& span : spans) context_.traces->Export(std::move(span));
}

}  // namespace aludel
