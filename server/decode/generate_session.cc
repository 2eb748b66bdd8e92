#include "server/decode/generate_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/codec/handoff.h"
#include "runtime/status_macros.h"
#include "server/decode/generate_wire.h"
#include "server/decode/sampling_fields.h"
#include "server/host/shedding.h"
#include "server/rpc/deadline.h"
#include "server/rpc/rpc_fields.h"
#include "server/rpc/rpc_status.h"
#include "spdlog/spdlog.h"

namespace aludel {
namespace {

// Time for a slow reader to take the rest after the end.
constexpr absl::Duration kReaderGrace = absl::Seconds(10);

std::optional<RequestTrace> TraceWithin(const std::optional<TraceContext>& caller) {
  if (!caller) return std::nullopt;
  const TraceContext request = caller->NewChild();
  return RequestTrace{*caller, request, request.NewChild()};
}

constexpr char kOwnPrefill[] = "";  // in place of a target's name

CostModel::Target CostTarget(const PlanTarget& target) {
  return {target.name, target.waiting_tokens, target.tokens_per_second};
}

}  // namespace

GenerateSession::GenerateSession(const DecodeContext& context, std::shared_ptr<Stream> stream,
                                 absl::Time deadline, const std::optional<TraceContext>& caller)
    : context_(context),
      stream_(std::move(stream)),
      deadline_(deadline),
      trace_(TraceWithin(caller)),
      timeline_(context.options->served_model_name, MonotonicNow()) {
  context_.sessions_open->fetch_add(1);
}

GenerateSession::~GenerateSession() {
  EndLocalWait();
  EndTrial();
  context_.sessions_open->fetch_sub(1);  // last: the context may go
}

void GenerateSession::EndLocalWait() {
  if (const int64_t tokens = local_tokens_.exchange(-1); tokens >= 0) context_.costs->EndLocal(tokens);
}

bool GenerateSession::BeginTrial() {
  const EngineStats engine = context_.model->engine().stats();
  const auto running = static_cast<int64_t>(engine.hedges_started - engine.hedges_won - engine.hedges_lost);
  trial_ = context_.trials->Begin(running, context_.options->hedge.max_running);
  return trial_;
}

void GenerateSession::EndTrial() {
  if (trial_.exchange(false)) context_.trials->End();
}

void GenerateSession::Start(const v1::GenerateRequest& request) {
  // Before anything logs or keeps them.
  absl::Status status = CheckRequestId(request.request_id());
  if (status.ok()) status = CheckCacheSalt(request.cache_salt());
  if (status.ok()) request_id_ = request.request_id();
  cache_salt_ = request.cache_salt();
  if (request.has_max_staleness_ms()) max_staleness_ms_ = request.max_staleness_ms();
  {
    absl::MutexLock lock(&mutex_);
    timeline_.Received(request_id_, request.prompt_size());
  }
  if (!status.ok()) return End(status);
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
  const v1::TextConstraint& wire = kept->constraint();
  context_.constraints->Begin(wait, {wire.prefix(), wire.json_schema(), wire.suffix()}, deadline_);
}

void GenerateSession::Begin(const v1::GenerateRequest& request, std::shared_ptr<TokenAutomaton> constraint) {
  const PlanRequest wanted = ReadPlanRequest(request);
  absl::StatusOr<Plan> plan = ChoosePlan(wanted, request.prompt());
  const absl::Status status =
      plan.ok() ? Admit(request, wanted, *plan, std::move(constraint)) : plan.status();
  if (!status.ok()) End(status);
}

absl::StatusOr<Plan> GenerateSession::ChoosePlan(const PlanRequest& wanted,
                                                 absl::Span<const int32_t> prompt) {
  CostModel& costs = *context_.costs;
  const std::vector<PlanTarget> targets = context_.prefill_pool->Snapshot();
  const int64_t cached =
      wanted.whole ? 0 : context_.model->engine().CachedTokens(prompt, /*codec=*/nullptr, cache_salt_);
  const std::optional<double> local = costs.PredictLocal(wanted.prompt_tokens - cached);
  const auto shipped = prompt.first(prompt.size() - std::min<size_t>(prompt.size(), 1));
  const absl::Time now = MonotonicNow();
  const bool may_try = !context_.options->planner.hedged || BeginTrial();
  const auto predict = [&](std::optional<size_t> target, const std::string& format) -> Prediction {
    if (!target) return {local, may_try && costs.IsStale(kOwnPrefill, "", now)};
    const PlanTarget& server = targets[*target];
    return {costs.PredictRemote(CostTarget(server), format, shipped, cache_salt_),
            may_try && costs.IsStale(server.name, format, now)};
  };
  ALUDEL_ASSIGN_OR_RETURN(
      Plan plan, MakePlan(context_.options->planner, FormatNames(context_), targets, wanted, predict));
  if (!plan.hedge_after) EndTrial();
  costs.Chosen(plan.remote() ? targets[plan.target].name : kOwnPrefill, plan.format, now);
  if (!plan.remote()) {
    plan.predicted_ttft = local;
    plan.cached_tokens = cached;
    return plan;
  }
  // The format's own recomputed tokens, beside what the operator wants computed here.
  const TokenRange range = HandedOver(context_.model->FindCodec(plan.format)->spec(), wanted.prompt_tokens);
  plan.handed_over_tokens = std::min(plan.handed_over_tokens, range.end);
  if (plan.handed_over_tokens <= range.begin) return Plan{.reason = PlanReason::kShortPrompt};
  return plan;
}

int64_t GenerateSession::CachedEnough(const Plan& plan, absl::Span<const int32_t> prompt) const {
  // The age of codes is not known here.
  if (max_staleness_ms_) return 0;
  const Engine& engine = context_.model->engine();
  const int64_t cached =
      engine.CachedTokens(prompt, &context_.model->FindCodec(plan.format)->spec(), cache_salt_);
  const int64_t worth_asking =
      std::max<int64_t>(context_.options->planner.min_remote_tokens, engine.options().block_tokens);
  return plan.handed_over_tokens - cached < worth_asking ? cached : 0;
}

absl::Status GenerateSession::CheckDeadline(const Plan& plan) const {
  const bool others =
      context_.costs->local_busy() || (plan.remote() && context_.receiver->open_tickets() > 0);
  absl::Status shed = ShedIfHopeless(plan.predicted_ttft, others, MonotonicNow(), deadline_);
  if (!shed.ok()) context_.metrics->CountPlan(Name(PlanKind::kShed), Name(PlanReason::kDeadline));
  return shed;
}

absl::Status GenerateSession::Admit(const v1::GenerateRequest& request, const PlanRequest& wanted,
                                    const Plan& chosen, std::shared_ptr<TokenAutomaton> constraint) {
  Plan plan = chosen;
  ALUDEL_ASSIGN_OR_RETURN(SamplingParams sampling, ReadSampling(request.sampling()));
  {
    absl::MutexLock lock(&mutex_);
    open_choices_ = sampling.choices;
  }
  GenerateSpec spec{.prompt = {request.prompt().begin(), request.prompt().end()},
                    .sampling = std::move(sampling),
                    .deadline = ToSteadyTime(deadline_),
                    .priority = request.priority(),
                    .cache_salt = cache_salt_};
  spec.constraint = std::move(constraint);
  FrameExtent extent;
  spec.cached_tokens = plan.remote() ? CachedEnough(plan, spec.prompt) : 0;
  const bool cached = spec.cached_tokens > 0;
  if (cached) {
    spec.codec = context_.model->FindCodec(plan.format);
    plan = Plan{.kind = PlanKind::kCached,
                .format = plan.format,
                .cached_tokens = spec.cached_tokens,
                .reason = PlanReason::kCached};
  } else {
    ALUDEL_RETURN_IF_ERROR(CheckDeadline(plan));
  }
  if (plan.remote()) {
    const DecoderFactory* codec = context_.model->FindCodec(plan.format);
    absl::StatusOr<FrameExtent> reserved = context_.arena->Reserve(context_.model->HandoffWindow(
        codec->spec(), plan.handed_over_tokens, context_.options->handoff_window_bytes));
    if (reserved.ok()) {
      extent = *std::move(reserved);
      spec.codec = codec;
      spec.handed_over_tokens = plan.handed_over_tokens;
    } else {
      plan = Plan{.reason = PlanReason::kArena};
    }
  }
  scored_ = wanted.whole;
  if (spec.sampling.top_logprobs) shown_logprobs_ = 1 + static_cast<size_t>(*spec.sampling.top_logprobs);
  // Only a single, unconstrained answer can be compared with a second computation.
  if ((plan.remote() || cached) && context_.shadow != nullptr && spec.sampling.choices == 1 &&
      spec.constraint == nullptr && context_.shadow->Choose()) {
    shadow_.emplace(ShadowAnswer{.format = plan.format, .cache_salt = cache_salt_, .prompt = spec.prompt});
    spec.sampling.top_logprobs = std::max(spec.sampling.top_logprobs.value_or(0), kShadowLogprobs);
  }
  if (plan.remote()) handoff_ = std::make_shared<Handoff>(context_, HandoffSpec(wanted, plan, spec));
  {
    const int64_t as_frames =
        plan.remote() ? plan.handed_over_tokens - spec.codec->spec().recomputed_head_tokens : 0;
    absl::MutexLock lock(&mutex_);
    timeline_.Planned(plan, as_frames, spec.sampling.choices, MonotonicNow());
  }
  if (plan.remote()) {
    target_ = context_.prefill_pool->Snapshot()[plan.target];
  } else {
    // A scored prompt has a small part of each step: others hardly wait for it.
    local_tokens_ = scored_ ? 0 : request.prompt_size() - plan.cached_tokens;
    context_.costs->BeginLocal(local_tokens_);
  }
  ALUDEL_ASSIGN_OR_RETURN(const SequenceId sequence,
                          context_.model->engine().Generate(std::move(spec), shared_from_this()));
  context_.metrics->CountPlan(Name(plan.kind), Name(plan.reason));
  absl::Status stopped;
  {
    absl::MutexLock lock(&mutex_);
    sequence_ = sequence;
    stopped = stopped_;
  }
  if (!stopped.ok()) {
    context_.model->engine().Cancel(sequence, stopped);
  } else if (plan.remote()) {
    handoff_->Begin(sequence, plan.target, std::move(extent));
  }
  return absl::OkStatus();
}

Handoff::Spec GenerateSession::HandoffSpec(const PlanRequest& wanted, const Plan& plan,
                                           const GenerateSpec& spec) const {
  Handoff::Spec handoff{.request_id = request_id_,
                        .traceparent = trace_ ? trace_->handoff.ToTraceparent() : "",
                        .prompt = {spec.prompt.begin(), spec.prompt.begin() + plan.handed_over_tokens},
                        .codec = &spec.codec->spec(),
                        .cache_salt = cache_salt_,
                        .max_staleness_ms = max_staleness_ms_,
                        .wanted = wanted,
                        .deadline = deadline_,
                        .patience = PatienceWith(plan, context_.options->hedge)};
  handoff.wanted.format = plan.format;  // what the engine expects from now on
  if (plan.move) {
    handoff.move_silence = LateBy(plan.move->after, context_.options->hedge);
    handoff.move_after = absl::Seconds(plan.move->after) + handoff.move_silence;
    handoff.patience.whole = 2 * handoff.move_after;  // the next server may be as late
    handoff.wanted.targets =
        RankedAfter(plan.move->target, context_.prefill_pool->Snapshot(), wanted.targets);
  }
  return handoff;
}

void GenerateSession::EndHandoff(TicketState end) {
  if (handoff_ != nullptr) handoff_->End(end);
}

void GenerateSession::Stop(const absl::Status& reason) {
  SequenceId sequence = 0;
  std::shared_ptr<ConstraintCache::Wait> wait;
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || !stopped_.ok()) return;
    stopped_ = reason;
    sequence = sequence_;
    wait = constraint_wait_.lock();
  }
  if (wait != nullptr) wait->Stop(reason);  // the session ends with it
  if (sequence != 0) context_.model->engine().Cancel(sequence, reason);
}

void GenerateSession::SendStarted(const SequenceTimes& times, int64_t cached_tokens, bool fell_back,
                                  const absl::Status& fallback_reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (timeline_.started()) return;
  }
  if (handoff_ != nullptr && handoff_->trace() != nullptr) handoff_->trace()->FirstToken(MonotonicNow());
  // The cache is complete: frames that still come are late.
  EndHandoff(fell_back ? TicketState::kAbandoned : TicketState::kCompleted);

  const Handoff::Report handoff = handoff_ == nullptr ? Handoff::Report{} : handoff_->report();
  RequestTimeline::Started started;
  double predicted_ttft = 0;
  {
    absl::MutexLock lock(&mutex_);
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
  Learn(started, times, cached_tokens);

  v1::GenerateEvent event;
  v1::Started* out = event.mutable_started();
  out->set_plan(started.labels.plan);
  out->set_format(started.labels.format);
  out->set_payload_bytes(handoff.usage.bytes);
  out->set_predicted_ttft(predicted_ttft);
  const ModelConfig& config = context_.model->config();
  out->set_handed_over_tokens(static_cast<uint32_t>(started.handed_over_tokens));
  out->set_raw_bytes(uint64_t{2} * config.layers * config.kv_dim() * 2 * started.handed_over_tokens);
  out->set_cached_tokens(static_cast<uint32_t>(cached_tokens));
  if (fell_back) out->set_fallback_reason(fallback_reason.ToString());
  FillStages(started.stages, out->mutable_stages());
  stream_->Push(std::move(event));
}

void GenerateSession::CountHandoff(const std::optional<RequestTimeline::HandoffOutcome>& handoff) {
  if (handoff)
    context_.metrics->handoffs.CountHandoff("received", StatusName(handoff->code), handoff->seconds);
}

void GenerateSession::Learn(const RequestTimeline::Started& started, const SequenceTimes& times,
                            int64_t cached_tokens) {
  EndLocalWait();
  EndTrial();
  if (started.predicted_ttft && !scored_) {
    context_.metrics->ObservePrediction(started.labels, *started.predicted_ttft, started.stages.ttft);
  }
  if (started.plan == PlanKind::kLocal && !scored_) {
    context_.costs->ObserveLocal(started.prompt_tokens, cached_tokens, started.stages);
  }
  if (started.plan == PlanKind::kFallback) LearnOvertaken(started);
  if (started.plan != PlanKind::kRemote) return;
  // The prefill server's account travels beside its frames: after a short prompt it comes after the
  // first token.
  handoff_->WhenAccounted(
      [costs = context_.costs, target = CostTarget(target_), format = started.labels.format, times,
       queued = started.before_admission](const Handoff& handoff, const Handoff::Report& report) {
        if (report.attempts != 1) return;
        costs->ObserveRemote(
            target, format, handoff.prompt(), handoff.cache_salt(),
            SplitFirstToken(times, report.producer, queued), *report.producer,
            {.bytes = report.usage.bytes,
             .first_bytes = report.usage.first_bytes,
             .seconds = absl::ToDoubleSeconds(report.usage.last_received - report.usage.first_received)});
      });
}

void GenerateSession::LearnOvertaken(const RequestTimeline::Started& started) {
  if (!started.handoff) return;
  const Handoff::Report report = handoff_->report();
  if (!WasOvertaken(started.handoff->code, report.attempts, context_.options->planner.by_prediction,
                    context_.options->hedge)) {
    return;
  }
  context_.costs->ObserveOvertaken(CostTarget(target_), started.labels.format, handoff_->prompt(),
                                   handoff_->cache_salt(), report.begin, MonotonicNow());
}

absl::Status GenerateSession::Deliver(v1::GenerateEvent event) {
  switch (stream_->Push(std::move(event))) {
    case Pushed::kTaken:
      return absl::OkStatus();
    case Pushed::kGone:
      return absl::CancelledError("the client has gone");
    case Pushed::kFull:
      break;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the reader is more than ", context_.options->max_stream_backlog, " tokens behind"));
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
  v1::GenerateEvent out;
  out.mutable_token()->set_id(event.id);
  out.mutable_token()->set_text(event.text);
  out.mutable_token()->set_choice(static_cast<uint32_t>(event.choice));
  if (shadow_) shadow_->Keep(event);
  FillLogprobs(event.logprobs, shown_logprobs_, out.mutable_token());
  const absl::Status delivered = Deliver(std::move(out));
  if (!delivered.ok()) Stop(delivered);
}

void GenerateSession::OnPromptScores(const PromptScores& scores) {
  v1::GenerateEvent out;
  FillPromptLogprobs(scores, out.mutable_prompt_logprobs());
  const absl::Status delivered = Deliver(std::move(out));
  if (!delivered.ok()) Stop(delivered);
}

void GenerateSession::OnDone(const absl::Status& status, const SequenceResult& result) {
  EndHandoff(TicketState::kAbandoned);
  if (shadow_ && status.ok() && !result.fell_back) context_.shadow->Offer(*std::move(shadow_));
  if (status.ok()) {
    // An answer may have no token at all.
    SendStarted(result.times, result.cached_tokens, result.fell_back, result.fallback_reason);
    v1::GenerateEvent out;
    FillFinished(result, out.mutable_finished());
    const absl::Status delivered = Deliver(std::move(out));
    if (!delivered.ok()) lost_ = delivered;
  } else {
    if (lost_.ok()) lost_ = status;
  }
  int open = 0;
  {
    absl::MutexLock lock(&mutex_);
    open = --open_choices_;
  }
  if (open == 0) return End(lost_);
  // If one choice fails, cancel the others.
  if (!lost_.ok()) Stop(lost_);
}

void GenerateSession::End(const absl::Status& status) {
  RequestTimeline::Ended ended;
  bool answering = false;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    ended = timeline_.End(status.code(), MonotonicNow());
    answering = timeline_.started();
  }
  EndLocalWait();
  EndTrial();
  context_.metrics->requests.ObserveRequest(ended.labels, StatusName(ended.code), ended.seconds,
                                            ended.prompt_tokens, ended.completion_tokens);
  // Of a request that ends before its first token. One that was refused has asked no prefill server.
  if (handoff_ != nullptr && handoff_->report().attempts > 0) CountHandoff(ended.handoff);
  // The gateway logs refusals, and no more of them than an operator can read.
  const bool refused = absl::IsResourceExhausted(status) && !answering;
  spdlog::log(status.ok() || refused ? spdlog::level::debug : spdlog::level::info,
              "request={} ended: {} (plan {} {}, {} + {} tokens, {:.3f} s)", request_id_, status.ToString(),
              ended.labels.plan, ended.labels.format, ended.prompt_tokens, ended.completion_tokens,
              ended.seconds);
  if (context_.traces != nullptr && trace_ && trace_->request.sampled) ExportSpans(status);
  if (handoff_ != nullptr) handoff_->WriteTrace();
  stream_->End(ToGrpc(status));
  // A backlog that is not read must not keep the call open for ever.
  context_.timer->At(MonotonicNow() + kReaderGrace, [weak = std::weak_ptr<Stream>(stream_)] {
    if (const auto stream = weak.lock()) stream->Abort();
  });
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
